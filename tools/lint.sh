#!/bin/sh
# clang-tidy 14 over the .cpp files that differ from a base commit, or over the files given.
#
#   tools/lint.sh [FILE...]          BASE=origin/main tools/lint.sh
#
# Needs the compile commands of a configured build folder (BUILD, default build). CUDA sources are left out: clang 14 does
# not know CUDA 13.
set -eu
cd "$(dirname "$0")/.."
base=${BASE:-HEAD}

if [ $# -gt 0 ]; then
  files=$(printf '%s\n' "$@")
else
  files=$({ git diff --name-only --diff-filter=d "$base" -- '*.cpp'; git ls-files -o --exclude-standard -- '*.cpp'; } | sort -u)
fi
if [ -z "$files" ]; then
  echo "lint: no .cpp file differs from $base (name files: make lint FILES='core/arena.cpp', or BASE=origin/main)"
  exit 0
fi
printf '%s\n' "$files" | xargs -P "$(nproc)" -n 1 clang-tidy-14 --quiet -p "${BUILD:-build}"
