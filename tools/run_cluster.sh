#!/bin/sh
# Starts a small cluster on this machine, one process per node of config/examples/one_machine.toml, and asks it about a
# long document, so that the answer streams in this terminal. A Prometheus watches the nodes, with the rules of
# monitoring/rules.yml, where one can be had (tools/get_prometheus.sh); some load follows, and what it has seen.
#
#   PORT=8080 CONTROL_PORT=7400 METRICS_PORT=9400 PROMETHEUS_PORT=9090 RUN_ONCE=1 tools/run_cluster.sh
#
# Pages of nodes have the ports that follow METRICS_PORT. PROMETHEUS_PORT=0: none.
#
# Afterwards the cluster stays up until Ctrl-C; RUN_ONCE=1 stops it after the answer. Exit status: that of the sample
# request, or 1 when the cluster does not come up.
set -eu
cd "$(dirname "$0")/.."
port=${PORT:-8080}
control=${CONTROL_PORT:-7400}
metrics=${METRICS_PORT:-9400}
prometheus_port=${PROMETHEUS_PORT:-9090}
cedar=build/bin/cedar
document=config/demo/sample_document.txt
question='What is E8236?'

ready() {
  python3 - "$port" <<'PY'
import sys, urllib.request
try:
    urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/ready", timeout=1)
except OSError:
    sys.exit(1)
PY
}
if ready; then
  echo "cluster: something already answers on port $port (PORT=... picks another one)" >&2
  exit 1
fi

work=$(mktemp -d)
nodes=
watcher=
stop() {
  trap - EXIT INT TERM
  # shellcheck disable=SC2086
  [ -z "$nodes$watcher" ] || kill $nodes $watcher 2>/dev/null || true
  wait
  rm -rf "$work"
}
trap stop EXIT
trap 'stop; exit 130' INT TERM

# The example with the ports that were asked for.
sed -e "s|\"../demo\"|\"$PWD/config/demo\"|" -e "s|127.0.0.1:7400|127.0.0.1:$control|" \
  config/examples/one_machine.toml | awk -v base="$metrics" '
    /^metrics = "127.0.0.1:94/ { sub(/94[0-9]*/, base + ++pages) } { print }' >"$work/cluster.toml"
printf '\n[http]\nport = %s\n' "$port" >>"$work/cluster.toml"

for node in gateway encoder-1 encoder-2 decoder engram indexer cache; do
  $cedar node $node --config "$work/cluster.toml" 2>"$work/$node.log" &
  nodes="$nodes $!"
done

# Jobs are named after roles, as the rules and dashboards expect.
scrape() {
  printf '  - job_name: cedar-%s\n    static_configs:\n' "$1"
  shift
  for target in "$@"; do
    printf '      - {targets: ["127.0.0.1:%s"], labels: {instance: "%s"}}\n' "${target#*=}" "${target%=*}"
  done
}
watch() {
  {
    printf 'global: {scrape_interval: 2s, evaluation_interval: 2s}\nrule_files: ["%s/monitoring/rules.yml"]\n' "$PWD"
    echo 'scrape_configs:'
    scrape gateway "gateway=$port"
    scrape encoder "encoder-1=$((metrics + 1))" "encoder-2=$((metrics + 2))"
    scrape decoder "decoder=$((metrics + 3))"
    scrape engram "engram=$((metrics + 4))"
    scrape indexer "indexer=$((metrics + 5))"
    scrape cache "cache=$((metrics + 6))"
  } >"$work/prometheus.yml"
  "$programs/prometheus" --config.file "$work/prometheus.yml" --storage.tsdb.path "$work/prometheus" \
    --web.listen-address "127.0.0.1:$prometheus_port" 2>"$work/prometheus.log" &
  watcher=$!
}
if [ "$prometheus_port" -ne 0 ]; then
  if programs=$(tools/get_prometheus.sh); then watch; else echo "cluster: goes on without Prometheus" >&2; fi
fi
tries=0
until ready; do
  tries=$((tries + 1))
  # shellcheck disable=SC2086
  if ! kill -0 $nodes 2>/dev/null || [ $tries -ge 120 ]; then
    echo "cluster: it did not come up on port $port (PORT, CONTROL_PORT, METRICS_PORT: others)" >&2
    tail -n 3 "$work"/*.log >&2
    exit 1
  fi
  sleep 0.25
done

echo
echo "Reading $document ($(wc -l <"$document") lines, $(wc -c <"$document") bytes), then asking: $question"
echo
# What Prometheus has of a query with one value.
seen() {
  printf '  %-46s %s\n' "$1" "$("$programs/promtool" query instant "http://127.0.0.1:$prometheus_port" "round($2, 0.001)" |
    sed -e 's/.*=> *//' -e 's/ @.*//')"
}
status=0
$cedar chat --url "ws://127.0.0.1:$port/v1/stream" --file "$document" "$question" || status=$?
echo
if [ -n "$watcher" ] && ! kill -0 "$watcher" 2>/dev/null; then
  echo "cluster: goes on without Prometheus, which ended (PROMETHEUS_PORT=... picks another port):" >&2
  tail -n 1 "$work/prometheus.log" >&2
  watcher=
fi
if [ -n "$watcher" ] && [ $status -eq 0 ]; then
  echo "The same document again, which the cache has now: Show error E9118"
  $cedar chat --url "ws://127.0.0.1:$port/v1/stream" --file "$document" 'Show error E9118' || status=$?
  echo
  echo "Load: 24 prompts of 1,540 tokens, answers of 10, four at a time"
  $cedar bench serve --url "ws://127.0.0.1:$port" --requests 24 --concurrency 4 --prompt-tokens 1540 --answer-tokens 10 \
    >"$work/load.log" || status=$?
  sleep 5 # two scrapes
  echo "What Prometheus has seen (http://127.0.0.1:$prometheus_port, dashboards: docs/operations.md):"
  seen 'processes that answer' 'sum(up)'
  seen 'answers' 'sum(cedar_gateway_responses_total)'
  seen 'prompt tokens' 'sum(cedar_gateway_prompt_tokens_total)'
  seen 'of these from the cache' 'sum(cedar_gateway_cached_prompt_tokens_total)'
  seen 'tokens written' 'sum(cedar_decoder_tokens_total)'
  seen 'seconds to the first token, mean' \
    'sum(cedar_gateway_time_to_first_token_seconds_sum) / sum(cedar_gateway_time_to_first_token_seconds_count)'
  seen 'seconds that encoders worked' 'sum(cedar_encoder_chunk_seconds_sum)'
  seen 'seconds that the decoder worked' 'sum(cedar_decoder_step_seconds_sum)'
  seen 'alerts that fire' 'sum(ALERTS{alertstate="firing"}) or vector(0)'
  echo
fi
if [ -n "${RUN_ONCE:-}" ] || [ $status -ne 0 ]; then
  exit $status
fi

echo "Still serving until Ctrl-C. In a browser: http://127.0.0.1:$port/. Another terminal may ask, too:"
echo "  $cedar chat --url ws://127.0.0.1:$port/v1/stream --file $document 'Show error E9118'"
echo "Kill a node and ask again:"
echo "  pkill -9 -f 'cedar node encoder-1'"
# Ctrl-C is how this ends, so it is no failure.
trap 'stop; exit 0' INT TERM
wait
