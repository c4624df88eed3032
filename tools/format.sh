#!/bin/sh
# clang-format 14 over the C++ and CUDA sources of every room, or over the files given.
#
#   tools/format.sh [--check] [FILE...]
#
# --check changes nothing and fails if a file would change; status 77 where clang-format-14 is not installed.
set -eu
cd "$(dirname "$0")/.."

mode=-i
if [ "${1:-}" = --check ]; then
  mode='--dry-run --Werror'
  shift
fi
if ! command -v clang-format-14 >/dev/null 2>&1; then
  echo "format: clang-format-14 is not installed (make format installs it)" >&2
  exit 77
fi

if [ $# -gt 0 ]; then
  printf '%s\n' "$@"
else
  find core kernels model transport storage monitoring config engine actors gateway apps tests bench \
    -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh'
fi | xargs -r -P 2 -n 16 clang-format-14 $mode
