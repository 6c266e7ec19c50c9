"""The completion scripts, as the shells run them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from harness import __main__
from harness.commands import COMMANDS
from tests.conftest import called

ASK = """source "$1"
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1))
_llama31_mlperf
echo "${{COMPREPLY[*]}}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The script of each shell."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        done = called(__main__.main, "llama31-mlperf", "completion", shell)
        assert (done.returncode, done.stderr) == (0, "")
        (folder / shell).write_text(done.stdout)
    return {path.name: path for path in folder.iterdir()}


def completed(script: Path, *words: str) -> list[str]:
    given = " ".join(f"'{word}'" for word in ("llama31-mlperf", *words))
    done = subprocess.run(
        ["bash", "-c", ASK.format(words=given), "-", str(script)], capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("",), list(COMMANDS)),
        (("run", "--scen"), ["--scenario"]),
        (("run", "--scenario", "s"), ["server", "singlestream"]),
        (("run", "--max-model-len", ""), ["auto"]),
        (("submission", "b"), ["build"]),
        (("report", "--fail"), ["--fail-if"]),
        (("run", "nothing-of-ours"), []),
    ],
)
def test_bash(scripts: dict[str, Path], words: tuple[str, ...], wanted: list[str]) -> None:
    assert completed(scripts["bash"], *words) == wanted


def test_zsh_reads_what_bash_does(scripts: dict[str, Path]) -> None:
    bash, zsh = (scripts[shell].read_text() for shell in ("bash", "zsh"))
    assert zsh.endswith(bash) and "bashcompinit" in zsh.removesuffix(bash)


def test_every_flag_in_fish(scripts: dict[str, Path]) -> None:
    text = scripts["fish"].read_text()
    assert "from run' -l scenario -x -a 'offline server" in text and "from submission' -f -a build" in text
    if fish := shutil.which("fish"):
        asked = f"source {scripts['fish']}; complete -C 'llama31-mlperf run --scenario s'"
        done = subprocess.run([fish, "-N", "-c", asked], capture_output=True, text=True, check=True)
        assert {"server", "singlestream"} <= set(done.stdout.split())
