"""README.md, followed: its blocks of code run in order in an empty clone, with stand-ins for the GPU, pip and the hub.

What is run is real: git, make, `run.py` with the demo and the echo engine, the wheel against a server of the tests.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core import files
from harness.core.locations import INFERENCE
from harness.results.summary import Summary
from tests.conftest import ROOT, tells
from tests.docs.test_readme import ENGLISH, blocks
from tests.support.fake_servers import Fake, serving

pytestmark = pytest.mark.slow
SHORT = "--total-sample-count 32 --min-duration 1"
# A Python that installs nothing, fetches nothing, and runs the demo in place of the model.
PYTHON = f"""#!/bin/bash
case "$*" in
  "-m venv "*)
    mkdir -p "$3/bin"
    for name in python python3 pip llama31-mlperf; do cp "$STANDINS/$name" "$3/bin/"; done
    echo "VIRTUAL_ENV=$PWD/$3 PATH=$PWD/$3/bin:\\$PATH; export VIRTUAL_ENV PATH" >"$3/bin/activate" ;;
  *"-m pip "* | *nltk.downloader*) echo "$@" >>"$STANDINS/fetched" ;;
  *download_model*) echo "the model" >>"$STANDINS/fetched" ;;
  *hub.download*) echo "13368 articles" >>"$STANDINS/fetched" ;;
  run.py | run.py*" max") exec {sys.executable} "$@" --model demo --backend echo {SHORT} --dry-run ;;
  run.py*) exec {sys.executable} "$@" --model demo --backend echo {SHORT} --no-exit-on-accuracy-fail ;;
  "-m harness doctor"*) exec {sys.executable} "$@" --model demo ;;
  *) exec {sys.executable} "$@" ;;
esac
"""
STANDINS = {
    "python": PYTHON,
    "python3": PYTHON,
    "python3.12": PYTHON,
    "docker": "#!/bin/sh\n",
    "nvidia-smi": "#!/bin/sh\necho 580.65.06\n",
    "pip": f'#!/bin/sh\nexec {sys.executable} -m pip "$@" -q --no-deps --target "$VIRTUAL_ENV/site"\n',
    "llama31-mlperf": f"""#!/bin/bash
export PYTHONPATH="$VIRTUAL_ENV/site"
case "$*" in
  doctor*) ;;
  *" max "*) set -- "$@" {SHORT} --workload chat --dry-run ;;
  *) set -- "$@" {SHORT} ;;
esac
exec {sys.executable} "$VIRTUAL_ENV/site/bin/llama31-mlperf" "$@"
""",
}


class Walk:
    """A folder in which the blocks are typed, one shell a block; the environment that one activates stays."""

    def __init__(self, place: Path) -> None:
        self.place, self.bin = place, place / "bin"
        self.here = place
        self.bin.mkdir()
        for name, text in STANDINS.items():
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")},
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "STANDINS": str(self.bin),
        }

    @property
    def fetched(self) -> str:
        return (self.bin / "fetched").read_text()

    def type(self, block: str) -> subprocess.CompletedProcess[str]:
        """Runs a block to its first failure."""
        script = f'set -e\n{block}\nset +e; env >"{self.place / "env"}"\n'
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.here, env=self.environment, capture_output=True, text=True, timeout=600
        )
        if done.returncode == 0:
            lines = (self.place / "env").read_text().splitlines()
            known = dict(line.partition("=")[::2] for line in lines if "=" in line)
            self.environment |= {name: known[name] for name in ("PATH", "VIRTUAL_ENV") if name in known}
            self.here = Path(known["PWD"])
        return done


def block(command: str) -> str:
    (found,) = [each for each in blocks(ENGLISH) if command in each]
    return found


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """After the first block."""
    walk = Walk(tmp_path_factory.mktemp("walk"))
    done = walk.type(blocks(ENGLISH)[0].replace(" URL ", f" {ROOT} "))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "-r requirements.txt -c requirements/constraints-gpu.txt" in walk.fetched and ".venv" in os.listdir(
        walk.here
    )
    latest = walk.here / "results" / "latest"
    page, test = (latest / "report.html").read_text(), files.read(latest / "summary.json", Summary).result
    assert test and test.details.usage
    is_known = bool(test.details.ran_out) or not test.background_load  # what bound a test on a busy machine is not
    assert [page.count(f"<h2>{head}") for head in ("Speed", "Cost")] == [1, 1]
    assert page.count("<h2>Bottleneck") == is_known
    return walk


def test_the_blocks_of_a_checkout_run_in_their_order(clone: Walk) -> None:
    found = clone.type(block("make setup"))
    assert found.returncode == 0, found.stdout + found.stderr
    assert clone.fetched.count("-m pip ") == 1 and "the model" in clone.fetched and "13368" in clone.fetched
    assert tells(found.stdout, "note", "sentences") or tells(found.stdout, "ok", "sentences")
    assert clone.environment["VIRTUAL_ENV"] == str(clone.here / ".venv")

    found = clone.type(block("--label before"))
    assert found.returncode in (0, 1) and "GATE" in found.stdout.upper(), found.stdout + found.stderr

    begin, build, check = block("submission build").partition("python -m harness submission build")[0::1]
    if not INFERENCE.joinpath("tools").is_dir():  # the submodule is not here, nor can it be fetched
        begin = "\n".join(line for line in begin.splitlines() if not line.startswith("git submodule "))
    found = clone.type(begin)
    assert found.returncode == 0, found.stdout + found.stderr
    path = clone.here / "my-system.json"
    fields = [line.strip() for line in found.stdout.splitlines() if line.startswith("  ")]
    wanted = json.loads(path.read_text())
    filled = {name: "as found" for name in fields if name in wanted} | {"status": "available"}
    path.write_text(json.dumps(wanted | filled))
    built, checked = (build + check).splitlines()
    found = clone.type(built.replace("results/RUN...", str((clone.here / "results" / "latest").resolve())))
    assert found.returncode == 0, found.stdout + found.stderr
    if INFERENCE.joinpath("tools").is_dir():
        assert clone.type(checked).returncode == 0


def test_a_running_server_is_measured_from_the_wheel(clone: Walk, tmp_path: Path) -> None:
    """Without data, without a hub, and without the checkout's files."""
    *begin, doctor, run, highest = block("pip install .").splitlines()
    walk = Walk(tmp_path)
    walk.here = clone.here
    done = walk.type("\n".join(begin))
    if "hatchling" in done.stderr:
        pytest.skip("no package index can be reached to build the wheel")
    assert done.returncode == 0, done.stdout + done.stderr
    walk.here = tmp_path / "elsewhere"
    walk.here.mkdir()
    with serving(Fake(pause_s=0.02)) as server:
        for line in (doctor, run, highest):
            done = walk.type(line.replace("http://host:8000/v1", server.address))
            assert done.returncode == 0, done.stdout + done.stderr
    (kept,) = [path for path in (walk.here / "results").glob("2*") if (path / "config.json").exists()]
    assert json.loads((kept / "config.json").read_text())["command"].startswith("llama31-mlperf run --endpoint")
