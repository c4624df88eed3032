#!/bin/sh
# Installs the packages of packages/debian.txt that are missing.
#
#   tools/install_packages.sh core [cluster] [dev]
#
# Nothing missing: says nothing, needs neither network nor rights. Otherwise apt-get, as root or through sudo.
set -eu
list=$(dirname "$0")/../packages/debian.txt

missing=
for group in "$@"; do
  for package in $(awk -v group="$group" '$1 == group { print $2 }' "$list"); do
    status=$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null || true)
    case $status in
      ii*) ;;
      *) missing="$missing $package" ;;
    esac
  done
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
  echo "install_packages: no apt-get here; Cedar needs what Debian 12 calls:$missing" >&2
  exit 1
fi
if [ "$(id -u)" -eq 0 ]; then
  as_root=
elif command -v sudo >/dev/null 2>&1; then
  as_root=sudo
else
  echo "install_packages: neither root nor sudo; as root run: apt-get install$missing" >&2
  exit 1
fi

echo "install_packages: installing$missing"
# sudo drops the environment, so the setting travels on the command line.
$as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
# shellcheck disable=SC2086 -- one word per package
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
