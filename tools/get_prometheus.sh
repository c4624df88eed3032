#!/bin/sh
# Prints the folder of programs `prometheus` and `promtool`. Where the machine has none, Debian's package is unpacked into
# .cache/prometheus: no rights are needed, nothing is installed, and no service starts.
#
# Exit status 1, with the reason, when they cannot be had.
set -eu
cd "$(dirname "$0")/.."
folder=$PWD/.cache/prometheus

if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
  dirname "$(command -v prometheus)"
  exit 0
fi
if [ ! -x "$folder/usr/bin/prometheus" ]; then
  if ! command -v apt-get >/dev/null; then
    echo "get_prometheus: no prometheus and no apt-get here" >&2
    exit 1
  fi
  rm -rf "$folder.new"
  mkdir -p "$folder.new"
  (
    cd "$folder.new"
    apt-get download -qq prometheus >/dev/null 2>"$folder.new/log" || {
      cat "$folder.new/log" >&2
      echo "get_prometheus: apt-get cannot download prometheus" >&2
      exit 1
    }
    dpkg-deb -x prometheus_*.deb .
    rm -f prometheus_*.deb log
  )
  rm -rf "$folder"
  mv "$folder.new" "$folder"
fi
echo "$folder/usr/bin"
