"""What CI, pre-commit and a forge read: by their forms, as far as that can be known here; and the shell scripts."""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core.software import PROGRAM_NAME, VERSION
from tests.conftest import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
JOBS = {
    f"{path.stem} {name}": job for path in WORKFLOWS for name, job in yaml.safe_load(path.read_text())["jobs"].items()
}
MAKEFILE = (ROOT / "Makefile").read_text()
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
TESTED = "3.11", "3.12", "3.13"


def shell_scripts() -> list[Path]:
    """Every file of this repository whose first line names a shell."""
    words = ["git", "ls-files", "-co", "--exclude-standard", "--", ":!third_party"]
    names = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    paths = [ROOT / name for name in names if (ROOT / name).is_file()]
    return [path for path in paths if re.match(rb"#!.*\b(ba|da)?sh\n", path.read_bytes()[:80])]


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
@pytest.mark.parametrize("path", shell_scripts(), ids=lambda path: path.name)
def test_a_shell_script_passes_shellcheck(path: Path) -> None:
    found = subprocess.run(["shellcheck", path], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_each_shell_script_is_hooked() -> None:
    (hook,) = (each for each in HOOKS[0]["hooks"] if each["id"] == "shellcheck")
    scripts = [str(path.relative_to(ROOT)) for path in shell_scripts()]
    assert len(scripts) > 6 and all(re.search(hook["files"], name) for name in scripts)


def test_hooks_fetch_nothing() -> None:
    (local,) = HOOKS
    assert local["repo"] == "local" and {"ruff", "mypy", "shellcheck"} <= {hook["id"] for hook in local["hooks"]}
    assert all(hook["language"] == "system" for hook in local["hooks"])


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_what_a_job_calls_is_there(job: Any) -> None:
    calls = [step["run"] for step in job["steps"] if "run" in step]
    parts = job["strategy"]["matrix"].get("part", [""])
    assert calls and not any("run" in step and "uses" in step for step in job["steps"])
    for call in calls:
        script, *words = shlex.split(re.sub(r"\$\{\{ *matrix.part *}}", parts[0], call))
        assert (ROOT / script).stat().st_mode & 0o111, script
        targets = [word for part in parts for word in part.split()] if words else []
        assert all(re.search(rf"^{target}:", MAKEFILE, re.M) for target in targets), call
    (setup,) = (step["with"] for step in job["steps"] if "setup-python" in step.get("uses", ""))
    assert setup["cache"] == "pip"
    assert [*ROOT.glob(setup["cache-dependency-path"])]


def test_every_test_runs_with_the_official_checker() -> None:
    job = JOBS["tests tests"]
    assert set(job["strategy"]["matrix"]["part"]) >= {"lint types", "test-no-engine", "test-engine"}
    (checkout,) = (step for step in job["steps"] if "checkout" in step.get("uses", ""))
    assert checkout["with"]["submodules"] is True
    whole = re.search(r"^test:(.*?)(##|$)", MAKEFILE, re.M)
    assert whole and {"lint", "types", "test-no-engine", "test-engine"} <= set(whole[1].split())


def test_the_client_runs_on_each_python() -> None:
    assert JOBS["tests client"]["strategy"]["matrix"]["python"] == [*TESTED]
    assert all("concurrency" in yaml.safe_load(path.read_text()) for path in WORKFLOWS)


def test_a_report_of_a_fault_has_its_settings() -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text())
    assert form["name"] and form["description"]
    asked = {part["id"]: part for part in form["body"]}
    assert all(part["validations"]["required"] and part["attributes"]["label"] for part in asked.values())
    assert "config.json" in asked["config"]["attributes"]["label"] and {"command", "last-line"} <= set(asked)


def test_the_version_is_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["title"], cited["version"]) == (project["name"], project["version"]) == (PROGRAM_NAME, VERSION)
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest and newest[1] == VERSION
