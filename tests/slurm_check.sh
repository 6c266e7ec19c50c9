#!/usr/bin/env bash
# deploy/slurm on a real Slurm of two nodes on this machine: one run; a server on each node, and servers that die; an
# array with two tasks at once, a node that is lost, a task whose time is over, the same array again, one report.
# No engine is started: echo answers, and a stand-in for vLLM's server. Needs root, slurm-wlm and munge; starts and ends
# its own daemons.
#   SWEEP    the sweep (default: tests/slurm_sweep.yaml, whose engine computes nothing)
#   KEEP     set: the folder with all results stays
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-$PWD/.venv/bin/python} SWEEP=${SWEEP:-tests/slurm_sweep.yaml}
DIR=$(mktemp -d)
RESULTS=$DIR/results
stop() { echo "slurm-check: $*" >&2; exit 1; }
passed() { echo "passed: $*"; }
for tool in sbatch slurmctld slurmd munged; do command -v "$tool" >/dev/null || stop "$tool is not installed"; done
[ "$(id -u)" = 0 ] || stop "needs root"

finish() {
  scancel --user=root 2>/dev/null || true
  for pid in "$DIR"/slurmd-n0.pid "$DIR"/slurmd-n1.pid "$DIR"/ctld.pid; do [ ! -f "$pid" ] || kill "$(cat "$pid")" 2>/dev/null || true; done
  [ -z "${MUNGE:-}" ] || kill "$MUNGE" 2>/dev/null || true
  if [ -n "${KEEP:-}" ]; then echo "kept: $DIR"; else rm -rf "$DIR"; fi
}
trap finish EXIT
if ! pgrep -x munged >/dev/null; then
  [ -s /etc/munge/munge.key ] || dd if=/dev/urandom of=/etc/munge/munge.key bs=1 count=1024 status=none
  install -d -o munge -g munge /run/munge /var/log/munge /var/lib/munge
  chown munge: /etc/munge /etc/munge/munge.key
  chmod 400 /etc/munge/munge.key
  runuser -u munge -- "$(command -v munged)"
  MUNGE=$(pgrep -x munged)
fi
mkdir -p "$DIR"/{state,log,results}
sed "s/@HOST@/$(hostname)/; s/NodeHostname=@HOST@/NodeHostname=$(hostname)/; s#@DIR@#$DIR#g" tests/slurm.conf >"$DIR/slurm.conf"
export SLURM_CONF=$DIR/slurm.conf
slurmctld -i
slurmd -N n0
slurmd -N n1
for _ in $(seq 30); do [ "$(sinfo -h -t idle -o %D)" = 2 ] && break; sleep 1; done
[ "$(sinfo -h -t idle -o %D)" = 2 ] || stop "the nodes did not come up: $(sinfo)"
passed "a Slurm of two nodes: $(sinfo -h -o '%P %D %t')"

over() { for _ in $(seq "$2"); do [ -z "$(squeue -h -j "$1" 2>/dev/null)" ] && return; sleep 1; done; stop "job $1 is not over: $(squeue)"; }
left() { scontrol show job "$1" --oneliner | sed -n 's/.*ExitCode=\([0-9]*\):.*/\1/p'; }

# The plain case, and a server on each node: in a folder of its own, where the logs lie.
mkdir "$DIR/job"
ln -s "$PWD/run.py" "$PWD/deploy" "$DIR/job"
printf '#!/bin/sh\nPYTHONPATH="%s" exec "%s" -m tests.support.job_python "$@"\n' "$PWD" "$PYTHON" >"$DIR/job/python"
chmod +x "$DIR/job/python"
single() { sbatch --parsable --chdir="$DIR/job" --partition=check --gres=none --cpus-per-task=1 --time=5 "$@"; }
short=(--model demo --mode performance --min-duration 3)

job=$(single --export="ALL,PYTHON=$PYTHON" deploy/slurm/run.sbatch "${short[@]}" --backend echo --total-sample-count 64)
over "$job" 120
grep -q '"complete"' "$DIR"/job/results/latest/status.json || stop "one run: $(cat "$DIR/job/llama31-run-$job.out")"
passed "one run: exit code $(left "$job")"

served() { single --nodes=2 --export="ALL,PYTHON=./python,MODEL=$PWD/demo/model${2:-}" deploy/slurm/serve.sbatch "${short[@]}" --concurrency "$1"; }
job=$(served 2)
over "$job" 180
[ "$(left "$job")" = 0 ] || stop "a server on each node: $(cat "$DIR"/job/llama31-serve-"$job"*)"
passed "a server on each node, and one run over both: exit code $(left "$job")"

job=$(served 2 ",STAND_IN_DIES=1 0")
over "$job" 60
[ "$(left "$job")" = 3 ] || stop "a server that dies: exit code $(left "$job"): $(cat "$DIR"/job/llama31-serve-"$job"*)"
grep -q "llama31-serve-$job-server" "$DIR/job/llama31-serve-$job.out" || stop "no log is named: $(cat "$DIR/job/llama31-serve-$job.out")"
passed "a server that dies: $(grep error: "$DIR/job/llama31-serve-$job.out" | tail -n 1)"

task() { sbatch --parsable --chdir="$PWD" --partition=check --gres=none --cpus-per-task=1 --output="$DIR/log/task-%A_%a.out" \
  --signal=B:TERM@30 --export="ALL,PYTHON=$PYTHON,FILE=$SWEEP,RESULTS=$RESULTS" "$@" deploy/slurm/sweep.sbatch; }

job=$(task --array=0 --time=5)
over "$job" 60
grep -q "must be a folder that all nodes share" "$DIR/log/task-${job}_0.out" || stop "a folder that is not shared: $(cat "$DIR"/log/task-*)"
passed "a results folder that the node does not see: $(tail -n 1 "$DIR/log/task-${job}_0.out")"

"$PYTHON" sweep.py "$SWEEP" --list >"$RESULTS/experiments.txt"
mapfile -t names <"$RESULTS/experiments.txt"
[ "${#names[@]}" = 4 ] || stop "four experiments: ${names[*]}"

first=$(task --array=0-3 --time=4)
both=0
for _ in $(seq 60); do
  [ "$(squeue -h -t running -j "$first" | wc -l)" = 2 ] && { both=1; break; }
  sleep 0.5
done
[ "$both" = 1 ] || stop "two tasks never ran at once"
passed "two tasks at once: $(squeue -h -t running -j "$first" -o '%K on %N' | paste -sd ,)"
for _ in $(seq 60); do [ -s "$RESULTS/array" ] && break; sleep 0.5; done # the tasks have written whose folder it is
code=0
SLURMD_NODENAME=n0 SLURM_JOB_ID=999 SLURM_ARRAY_TASK_ID=0 FILE=$SWEEP RESULTS=$RESULTS bash deploy/slurm/sweep.sbatch \
  2>"$DIR/log/second.txt" || code=$?
[ "$code" = 2 ] || stop "a second array: exit code $code"
grep -q "still runs in" "$DIR/log/second.txt" || stop "a second array: $(cat "$DIR/log/second.txt")"
passed "a second array in the same folder: $(cat "$DIR/log/second.txt")"
lost=
for _ in $(seq 230); do
  node=$(squeue -h -t running -j "$first" -o '%K %N' | sed -n 's/^2 //p')
  [ -n "$node" ] && compgen -G "$RESULTS/${names[2]}/sweeps/2*/${names[2]}/2*/Performance" >/dev/null && { lost=$node; break; }
  sleep 1
done
[ -n "$lost" ] || stop "${names[2]} did not get to its own run: $(squeue)"
echo "$(date +%H:%M:%S) node $lost is lost while ${names[2]} runs"
kill -9 "$(cat "$DIR/slurmd-$lost.pid")"
for pid in $(pgrep -f "$RESULTS/${names[2]}"); do kill -9 "$pid" || true; done # what ran on that node
over "$first" 600
echo "$(date +%H:%M:%S) the array is over"
slurmd -N "$lost"
for _ in $(seq 60); do [ "$(sinfo -h -t idle -o %D)" = 2 ] && break; scontrol update nodename="$lost" state=resume 2>/dev/null || true; sleep 1; done

status() { "$PYTHON" - "$RESULTS" "$1" <<'PY'
import json, sys
from pathlib import Path
for path in Path(sys.argv[1]).glob(f"{sys.argv[2]}/sweeps/2*/sweep.json"):
    print(" ".join(f"{r['experiment']}:{r['status']}" for r in json.loads(path.read_text())["records"]))
PY
}
for name in "${names[@]}"; do echo "  $name: $(status "$name")"; done
[[ $(status "${names[0]}") == *"${names[0]}:complete"* && $(status "${names[1]}") == *"${names[1]}:complete"* ]] || stop "the other tasks were harmed"
[[ $(status "${names[2]}") != *"${names[2]}:complete"* ]] || stop "${names[2]} came to its end on a lost node"
[[ $(status "${names[3]}") == *"${names[3]}:interrupted"* ]] || stop "${names[3]} was not ended by its time: $(status "${names[3]}")"
passed "the lost node and the time limit cost nothing but their own experiments"
"$PYTHON" sweep.py "$SWEEP" --gather "$RESULTS" >/dev/null
grep -o "no result of [^|]*" "$RESULTS"/sweeps/*/report.md | tail -n 1

before=$(find "$RESULTS" -path '*/sweeps/2*/*/2*' -name status.json | wc -l)
again=$(task --array=0-3 --time=15)
over "$again" 900
ran=$(($(find "$RESULTS" -path '*/sweeps/2*/*/2*' -name status.json | wc -l) - before))
for name in "${names[@]}"; do echo "  $name: $(status "$name")"; [[ $(status "$name") == *"$name:complete"* ]] || stop "$name is not complete"; done
[ "$ran" -le 4 ] || stop "$ran runs, and two experiments were missing"
passed "the same array again ran what was missing: $ran runs with the baselines of their nodes"
report=$("$PYTHON" sweep.py "$SWEEP" --gather "$RESULTS")
! grep -q "no result of" "${report%.html}.md" || stop "something is missing in $report"
passed "one report: $report"
table=$(sed -n '/^| experiment | description/,/^$/p' "${report%.html}.md")
echo "$table"
for name in "${names[@]}"; do grep -q "^| \**$name" <<<"$table" || stop "$name has no row in the table of $report"; done
passed "its table has a row for each experiment"
