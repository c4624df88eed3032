#!/bin/sh
# Runs each program of build-fuzz/ for FUZZ_SECONDS (60). New inputs collect in build-fuzz/corpus/<program>; an input
# that crashes is left in build-fuzz/ and ends the run with a failure.
set -eu
cd "$(dirname "$0")/../build-fuzz"
for program in bin/fuzz_*; do
  name=$(basename "$program")
  if ! "$program" -max_total_time="${FUZZ_SECONDS:-60}" -rss_limit_mb=2048 -print_final_stats=1 "corpus/$name" \
    >"$name.log" 2>&1; then
    cat "$name.log"
    echo "fuzz: $name failed"
    exit 1
  fi
  echo "$name: $(sed -n 's/^stat::number_of_executed_units: */inputs /p' "$name.log"), corpus $(ls "corpus/$name" | wc -l)"
done
