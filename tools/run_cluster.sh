#!/bin/sh
# Starts a small cluster on this machine, one process per node of config/examples/one_machine.toml, and asks it about a
# long document, so that the answer streams in this terminal.
#
#   PORT=8080 CONTROL_PORT=7400 RUN_ONCE=1 tools/run_cluster.sh
#
# Afterwards the cluster stays up until Ctrl-C; RUN_ONCE=1 stops it after the answer. Exit status: that of the sample
# request, or 1 when the cluster does not come up.
set -eu
cd "$(dirname "$0")/.."
port=${PORT:-8080}
control=${CONTROL_PORT:-7400}
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
stop() {
  trap - EXIT INT TERM
  # shellcheck disable=SC2086
  [ -z "$nodes" ] || kill $nodes 2>/dev/null || true
  wait
  rm -rf "$work"
}
trap stop EXIT
trap 'stop; exit 130' INT TERM

# The example with the ports that were asked for.
sed -e "s|\"../demo\"|\"$PWD/config/demo\"|" -e "s|127.0.0.1:7400|127.0.0.1:$control|" \
  config/examples/one_machine.toml >"$work/cluster.toml"
printf '\n[http]\nport = %s\n' "$port" >>"$work/cluster.toml"

for node in gateway encoder-1 encoder-2 decoder engram indexer cache; do
  $cedar node $node --config "$work/cluster.toml" 2>"$work/$node.log" &
  nodes="$nodes $!"
done
tries=0
until ready; do
  tries=$((tries + 1))
  # shellcheck disable=SC2086
  if ! kill -0 $nodes 2>/dev/null || [ $tries -ge 120 ]; then
    echo "cluster: it did not come up on port $port (PORT=... and CONTROL_PORT=... pick others)" >&2
    tail -n 3 "$work"/*.log >&2
    exit 1
  fi
  sleep 0.25
done

echo
echo "Reading $document ($(wc -l <"$document") lines, $(wc -c <"$document") bytes), then asking: $question"
echo
status=0
$cedar chat --url "ws://127.0.0.1:$port/v1/stream" --file "$document" "$question" || status=$?
echo
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
