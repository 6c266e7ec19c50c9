#!/usr/bin/env bash
# One run over two hosts: vLLM's own data parallelism between two network namespaces of this machine, each with its
# own address, driven by one run.py. The second host runs no run.py: vLLM itself, headless. Needs root and iproute2.
#   tests/two_hosts.sh [flags of run.py]     a run
#   LOSE=1 tests/two_hosts.sh                the second host dies in the performance test
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
FIRST=10.77.0.1 SECOND=10.77.0.2 PORT=13345
LOGS=$(mktemp -d)

finish() {
  ip netns pids second 2>/dev/null | xargs -r kill -9 || true
  ip netns del first 2>/dev/null || true
  ip netns del second 2>/dev/null || true
}
trap finish EXIT
finish
ip netns add first
ip netns add second
ip link add to-second netns first type veth peer name to-first netns second
ip -n first addr add "$FIRST/24" dev to-second
ip -n second addr add "$SECOND/24" dev to-first
for end in "first lo" "first to-second" "second lo" "second to-first"; do
  read -r host device <<<"$end"
  ip -n "$host" link set "$device" up
done

# `vllm serve --headless`, which vLLM's build for the CPU does not install as a command. The arguments are those that
# run.py gives its own engine (config.json holds them).
SERVE='
import sys
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser
command, parser = ServeSubcommand(), FlexibleArgumentParser()
command.subparser_init(parser.add_subparsers())
command.cmd(parser.parse_args(["serve", *sys.argv[1:]]))
'
VLLM_HOST_IP=$SECOND VLLM_NO_USAGE_STATS=1 ip netns exec second "$PYTHON" -c "$SERVE" demo/model \
  --headless --data-parallel-size 2 --data-parallel-size-local 1 --data-parallel-start-rank 1 \
  --data-parallel-address "$FIRST" --data-parallel-rpc-port "$PORT" \
  --dtype bfloat16 --max-model-len 1024 --max-num-seqs 64 --kv-cache-memory-bytes 1073741824 --enforce-eager \
  --no-enable-prefix-caching --disable-log-stats >"$LOGS/second.log" 2>&1 &

if [ -n "${LOSE:-}" ]; then
  (
    until grep -qs "performance test" "$LOGS/screen.txt"; do sleep 0.2; done
    sleep 3
    echo "the second host is lost" >&2
    ip netns pids second | xargs kill -9
  ) &
fi

code=0
VLLM_HOST_IP=$FIRST ip netns exec first "$PYTHON" -u run.py --model demo --data-parallel-size 2 \
  --engine-arg data_parallel_size_local=1 --engine-arg data_parallel_address="$FIRST" \
  --engine-arg data_parallel_rpc_port="$PORT" "$@" 2>&1 | tee "$LOGS/screen.txt" || code=$?
echo "exit code $code; the second host's log: $LOGS/second.log"
exit "$code"
