#!/bin/sh
# Serves the demo model and asks it about a long document, so that the answer streams in this terminal.
#
#   PORT=8080 RUN_ONCE=1 MODEL=config/demo tools/run_demo.sh
#
# Afterwards the server stays up until Ctrl-C; RUN_ONCE=1 stops it after the answer. Exit status: that of the sample
# request, or 1 when the server does not come up.
set -eu
cd "$(dirname "$0")/.."
port=${PORT:-8080}
model=${MODEL:-config/demo}
cedar=build/bin/cedar
document=config/demo/sample_document.txt
question='What is E8236?'

# python3 rather than curl: it is among the packages anyway.
healthy() {
  python3 - "$port" <<'PY'
import sys, urllib.request
try:
    urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/health", timeout=1)
except OSError:
    sys.exit(1)
PY
}
if healthy; then
  echo "run: something already answers on port $port (PORT=... picks another one)" >&2
  exit 1
fi
$cedar serve --port "$port" --model "$model" &
server=$!
stop() {
  trap - EXIT INT TERM
  kill "$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
}
trap stop EXIT
trap 'stop; exit 130' INT TERM

alive() { kill -0 "$server" 2>/dev/null; }

tries=0
until healthy && alive; do
  tries=$((tries + 1))
  if ! alive || [ $tries -ge 120 ]; then
    echo "run: the server did not come up on port $port (PORT=... picks another one)" >&2
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
# curl is not among the packages; a machine without it gets no advice that fails.
command -v curl >/dev/null 2>&1 &&
  echo "  curl http://127.0.0.1:$port/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'"
# Ctrl-C is how this ends, so it is no failure.
trap 'stop; exit 0' INT TERM
wait "$server"
