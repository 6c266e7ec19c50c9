"""The scripts for Slurm, with stand-ins for srun, scontrol and vLLM's server. `make slurm-check` has a real Slurm."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.fake_servers import Fake, free_ports, serving

SRUN = """#!/bin/bash
echo "$@" >>"$LOG/srun.txt"
output=/dev/null
while [ "$1" != bash ]; do
  case $1 in --output=*) output=${1#*=} ;; esac
  shift
done
for node in 0 1; do SLURM_NODEID=$node "$@" >"${output//%N/n$node}" 2>&1 & done
trap 'kill $(jobs -p)' TERM EXIT
wait -n
"""
SCONTROL = """#!/bin/bash
case $2 in
  hostnames) printf 'n0\\nn1\\n' ;;
  node) echo "NodeName=$3 NodeAddr=127.0.0.1 Port=1" ;;
esac
"""
RUN = ("--model", "demo", "--mode", "performance", "--concurrency", "2", "--min-duration")
LIMIT_S = 100


@pytest.fixture
def job(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a job on two nodes that are this machine, in a folder of its own."""
    for name in ("run.py", "deploy"):
        (tmp_path / name).symlink_to(ROOT / name)
    commands = tmp_path / "bin"
    commands.mkdir()
    python = f'#!/bin/sh\nexec "{sys.executable}" -m tests.support.job_python "$@"\n'
    for name, text in {"srun": SRUN, "scontrol": SCONTROL, "python": python}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    return os.environ | {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "LOG": str(tmp_path),
        "PYTHON": str(commands / "python"),
        "PYTHONPATH": str(ROOT),
        "MODEL": str(ROOT / "demo" / "model"),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[0-1]",
        "SLURM_CPUS_PER_TASK": "3",
        "PORT": str(free_ports(2)),
    }


def submitted(job: dict[str, str], *words: str) -> subprocess.Popen[str]:
    script = ROOT / "deploy" / "slurm" / "serve.sbatch"
    command = ["bash", str(script), *RUN, *words]
    return subprocess.Popen(command, cwd=job["LOG"], env=job, text=True, stdout=-1, stderr=subprocess.STDOUT)


def ended(job: dict[str, str], *words: str) -> tuple[int, str]:
    with submitted(job, *words) as process:
        shown, _ = process.communicate(timeout=LIMIT_S)
    return process.returncode, shown


@pytest.mark.slow
def test_each_node_serves_and_one_run_asks_all_of_them(job: dict[str, str]) -> None:
    code, shown = ended(job, "2")
    assert code == 0, shown
    assert all((Path(job["LOG"]) / f"llama31-serve-7-server-n{node}.out").exists() for node in (0, 1))
    assert "--cpus-per-task=3" in (Path(job["LOG"]) / "srun.txt").read_text()
    assert "OPENAI_API_KEY" not in job  # and the stand-ins answer 401 without one


@pytest.mark.parametrize("dies", ["0", "1 0"])
def test_servers_that_die_before_they_answer_end_the_job(job: dict[str, str], dies: str) -> None:
    code, shown = ended(job | {"STAND_IN_DIES": dies}, "2")
    assert code == 3, shown
    assert "error: a server ended" in shown and "llama31-serve-7-server-*.out" in shown


@pytest.mark.slow
def test_a_server_that_dies_ends_the_run(job: dict[str, str]) -> None:
    code, shown = ended(job | {"STAND_IN_DIES": "1 12"}, "600")
    assert code == 3, shown
    assert "llama31-serve-7-server-*.out" in shown


@pytest.mark.parametrize(
    ("stranger", "reason"),
    [(Fake(models=("llama31-job-6",)), "llama31-job-6"), (Fake(models=("llama31-job-7",), key="other"), "401")],
    ids=["another model name", "another key"],
)
def test_a_server_of_another_job_is_not_measured(job: dict[str, str], stranger: Fake, reason: str) -> None:
    with serving(stranger):
        port = stranger.address.removesuffix("/v1").rpartition(":")[2]
        found = subprocess.run(
            [sys.executable, "deploy/slurm/wait_for_servers.py", "llama31-job-7", stranger.address],
            cwd=ROOT,
            env=job | {"OPENAI_API_KEY": "ours"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert found.returncode == 1 and not found.stdout
        assert reason in found.stderr and port in found.stderr and "PORT" in found.stderr
        code, _ = ended(job | {"PORT": port}, "2")  # whichever is first: this, or the own server that found no port
    assert code in (1, 3) and not stranger.asked


@pytest.mark.slow
def test_a_signal_before_the_time_limit_keeps_what_there_is(job: dict[str, str]) -> None:
    with submitted(job, "600") as process:
        results = Path(job["LOG"]) / "results"
        until = time.monotonic() + LIMIT_S
        while not any(results.glob("2*/Performance*/*")) and time.monotonic() < until:
            time.sleep(0.2)
        process.terminate()
        shown, _ = process.communicate(timeout=LIMIT_S)
    (status,) = results.glob("2*/status.json")
    assert "interrupted" in status.read_text(), shown
    assert process.returncode == 130


def test_two_jobs_have_ports_of_their_own(job: dict[str, str]) -> None:
    del job["PORT"]
    for number in ("7", "8"):
        ended(job | {"SLURM_JOB_ID": number, "STAND_IN_DIES": "0"}, "2")
    logs = [(Path(job["LOG"]) / f"llama31-serve-{number}-server-n0.out").read_text() for number in ("7", "8")]
    assert len(set(logs)) == 2 and all("server on port" in log for log in logs)


@pytest.mark.slow
def test_a_plain_job_is_one_run(job: dict[str, str]) -> None:
    script = ROOT / "deploy" / "slurm" / "run.sbatch"
    words = ["bash", str(script), "--model", "demo", "--dry-run"]
    done = subprocess.run(words, cwd=job["LOG"], env=job, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0 and "demo" in done.stdout


def test_an_array_is_refused_while_another_runs_in_its_folder(job: dict[str, str], tmp_path: Path) -> None:
    """However many lines squeue has of it."""
    squeue = tmp_path / "bin" / "squeue"
    squeue.write_text("#!/bin/sh\nseq 100000\n")
    squeue.chmod(0o755)
    (tmp_path / "experiments.txt").write_text("quick\n")
    (tmp_path / "array").write_text("6\n")
    job |= {"FILE": "none.yaml", "RESULTS": str(tmp_path), "SLURMD_NODENAME": "n0", "SLURM_ARRAY_TASK_ID": "0"}
    words = ["bash", str(ROOT / "deploy" / "slurm" / "sweep.sbatch")]
    done = subprocess.run(words, cwd=tmp_path, env=job, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 2 and "array 6 still runs" in done.stderr
