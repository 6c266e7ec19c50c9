"""What a run needs, row by row: each failure is one line with what mends it, and a run ends there before it begins."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.commands import doctor as doctor_command
from harness.config import checkpoint
from harness.config.run import RunConfig
from harness.core import locations, nvml, vllm_source
from harness.core.errors import UsageError
from harness.core.file_limits import GIB
from harness.runner import doctor, server_probe
from tests.conftest import ROOT, called, ended
from tests.support.fake_servers import Fake, serving

DEMO = RunConfig(model="demo")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "WATCH_S", 0.0)


def look(config: RunConfig) -> dict[str, doctor.Finding]:
    server_probe.probe_servers.cache_clear()
    return {each.name: each for each in doctor.findings(config)}


def test_the_demo_needs_no_server_and_no_gpu() -> None:
    found = look(DEMO)
    assert {
        name: found[name].status for name in ("Python", "packages", "vLLM", "memory", "model", "data")
    } == dict.fromkeys(("Python", "packages", "vLLM", "memory", "model", "data"), "ok")
    assert found["server"].status == found["submodule"].status == found["chat template"].status == "not needed"
    doctor.require(DEMO)


def test_no_vllm_entry_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vllm_source, "folder", lambda: tmp_path)  # as a checkout of vLLM beside run.py is found
    found = look(DEMO)["vLLM"]
    assert found.status == "failed" and sys.executable in found.found and found.command == "make setup"
    with pytest.raises(UsageError, match="make setup"):
        doctor.require(DEMO)


def test_a_misspelt_engine_argument_needs_no_installation() -> None:
    misspelt = DEMO.with_settings(engine_arg=("max_num_seq=4",))
    found = look(misspelt)["vLLM"]
    assert found.status == "failed" and "max_num_seqs" in found.found and not found.command
    with pytest.raises(UsageError, match=r"did you mean max_num_seqs[^:]*\?$"):
        doctor.require(misspelt)


def test_a_port_that_is_taken_gets_no_other_server() -> None:
    with serving(Fake()) as fake:
        assert doctor.local_server_command(RunConfig(endpoint=(fake.address,))) == ""


def test_no_vllm_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.metadata, "entry_points", lambda group: doctor.metadata.EntryPoints())
    found = look(RunConfig(endpoint=("http://127.0.0.1:9/v1",)))
    assert found["server"].status == "failed"
    assert "python -m vllm.entrypoints.openai.api_server --model meta-llama" in found["server"].command
    assert found["server"].command.endswith(" --port 9")
    assert {found[name].status for name in ("tokenizer", "API", "delivery", "chat template")} == {"unknown"}


@pytest.mark.parametrize("address", ["http://192.0.2.1:8000/v1", "http://nohost.invalid/v1"])
def test_a_server_elsewhere_is_not_started_here(address: str) -> None:
    assert doctor.local_server_command(RunConfig(endpoint=(address,))) == ""


def test_the_packages_are_held_against_a_named_list() -> None:
    assert re.fullmatch(r"\d+ as in requirements(?:/\w+)?\.txt", look(DEMO)["packages"].text)


def test_other_packages_than_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    here = doctor.installed_version
    monkeypatch.setattr(doctor, "installed_version", lambda name: "0.1" if name == "typer" else here(name))
    row = look(DEMO)["packages"]
    assert row.status == "note" and "typer 0.1 for 0." in row.found
    assert "requirements/cpu.txt" in row.command


def test_an_installed_package_is_held_against_its_own_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "IS_CHECKOUT", False)
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: ["typer>=0.1", "rich>=1; python_version>'3'"])
    assert look(DEMO)["packages"].text == "2 as llama31-mlperf needs them"
    asked = ["typer>=9000", "no-such-package>=1", "vllm==0.1; extra == 'gpu'"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: asked)
    row = look(DEMO)["packages"]
    assert row.status == "note" and "typer" in row.found and "no-such-package missing" in row.found
    assert "vllm" not in row.found and row.command.endswith("pip install llama31-mlperf")


def test_a_command_that_mends_stands_whole_on_its_own_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"{'/a/very/long/path' * 20}/bin/python -m pip install '[gpu]'"
    monkeypatch.setenv("COLUMNS", "60")
    doctor_command.show([doctor.Finding("vLLM", "failed", "no vLLM", command=command)])
    assert command in [line.strip() for line in capsys.readouterr().out.splitlines()]


def test_the_tokenizer_of_the_servers_model_is_not_here() -> None:
    with serving(Fake(models=("nobody/no-model",))) as fake:
        found = look(RunConfig(endpoint=(fake.address,)))
    assert found["tokenizer"].status == "failed" and "--model" in found["tokenizer"].found
    assert found["server"].status == "ok" and found["model"].status == found["API"].status == "unknown"


def test_no_chat_template() -> None:
    with serving(Fake(no_chat="you must provide a chat template")) as fake:
        found = look(RunConfig(endpoint=(fake.address,)))["chat template"]
        assert found.status == "ok" and found.found.startswith("none") and "provide a chat template" in found.found
        found = look(RunConfig(endpoint=(fake.address,), endpoint_api="chat"))["chat template"]
    assert found.status == "failed" and "--chat-template" in found.mend


def test_a_server_that_streams() -> None:
    told = 'vllm:cache_config_info{{block_size="16",enable_prefix_caching="True"}} 1\n'
    with serving(Fake(pause_s=0.05, counters=told)) as fake:
        found = look(RunConfig(endpoint=(fake.address,)))
    assert found["server"].status == found["API"].status == "ok"
    assert "vLLM 9.9.9" in found["API"].found and found["prefix cache"].found.startswith("on")
    assert "in 2 messages" in found["delivery"].found
    assert found["vLLM"].status == found["memory"].status == "not needed"


@pytest.mark.parametrize("load", [{"samples_per_query": 4}, {"batch_size": 8}, {"server_target_qps": "max"}], ids=str)
def test_a_server_is_asked_alike_whatever_the_load(load: dict[str, Any]) -> None:
    with serving(Fake(pause_s=0.05)) as fake:
        assert look(RunConfig(endpoint=(fake.address,), **load))["API"].status == "ok"


def test_a_server_whose_answers_come_at_once() -> None:
    whole = json.dumps({"choices": [{"index": 0, "text": " a b", "token_ids": [3, 4], "finish_reason": "length"}]})
    with serving(Fake(frames=(f"data: {whole}\n\n", "data: [DONE]\n\n"))) as fake:
        found = look(RunConfig(endpoint=(fake.address,)))["delivery"]
    assert found.status == "failed" and "--stream-interval" in found.found


def test_no_punkt_tab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "sentence_splitter", lambda: ("built-in", str.split))
    assert look(DEMO)["sentences"].command == "make punkt"
    monkeypatch.setattr(doctor, "sentence_splitter", lambda: ("nltk punkt_tab", str.split))
    assert look(DEMO)["sentences"].status == "ok"
    assert look(RunConfig(model="demo", mode="performance"))["sentences"].status == "not needed"


def test_an_empty_submodule(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(locations, "ROOT", tmp_path)
    monkeypatch.setattr(doctor, "INFERENCE", tmp_path / "third_party" / "inference")
    with pytest.raises(UsageError, match="git submodule update --init third_party/inference"):
        doctor.submodule(DEMO)
    (tmp_path / "third_party" / "inference" / "tools").mkdir(parents=True)
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    assert doctor.submodule(DEMO) == "third_party/inference/tools"


def test_weights_and_one_sequence_against_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "gpus", lambda: [nvml.GPU("a card", 17 * GIB)])
    monkeypatch.setattr(checkpoint, "weight_bytes", lambda config: 15 * GIB)
    asked = RunConfig(model="demo", tensor_parallel_size=1)
    doctor.memory(asked)  # 15.3 GiB are vLLM's
    monkeypatch.setattr(checkpoint, "cache_bytes", lambda config, tokens: GIB)
    with pytest.raises(UsageError, match=r"15 GiB of weights and 1 for 1,024 tokens do not fit: 15\.3 GiB"):
        doctor.memory(asked)
    with pytest.raises(UsageError, match="--max-model-len"):
        doctor.require(asked)


def test_the_cache_of_a_sequence() -> None:
    assert checkpoint.cache_bytes(DEMO, 1024) == 2 * 5 * 2 * 64 * 2 * 1024
    assert checkpoint.cache_bytes(RunConfig(model="demo", kv_cache_dtype="fp8"), 1024) == 5 * 2 * 64 * 2 * 1024


def test_the_exit_code_and_the_json() -> None:
    found = ended("-m", "harness", "doctor", "--endpoint", "http://127.0.0.1:9/v1", "--json")
    rows = json.loads(found.stdout)
    assert found.returncode == 2 and {"name": "server", "status": "failed"}.items() <= rows[2].items()
    assert "torch" not in found.stderr.lower()


def test_nothing_imports_torch_or_vllm() -> None:
    code = (
        "import sys; sys.argv = ['doctor', '--model', 'demo']\n"
        "from harness.__main__ import main\n"
        "try: main('doctor')\n"
        "except SystemExit: print(sorted({'torch', 'vllm'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("[]\n"), done.stdout + done.stderr


def test_what_no_run_needs_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a plain clone the submodule is empty, and a busy machine measures all the same."""
    monkeypatch.setattr(locations, "ROOT", tmp_path)
    monkeypatch.setattr(doctor, "INFERENCE", tmp_path / "third_party" / "inference")
    monkeypatch.setattr(doctor, "sentence_splitter", lambda: ("built-in", str.split))
    monkeypatch.setattr(doctor, "installed_version", lambda name: "missing")
    wanted = ("submodule", "sentences", "packages")
    checks = [check for check in doctor.CHECKS if check.name in wanted]
    found = [doctor.finding(check, RunConfig()) for check in checks]
    assert sorted(each.name for each in found) == sorted(wanted)
    assert {each.status for each in found} == {"note"} and not any(check.is_made_at_start for check in checks)
    monkeypatch.setattr(doctor, "findings", lambda config: iter(found))
    done = called(partial(main, "doctor"), "doctor", "--json")
    assert done.returncode == 0 and [each["status"] for each in json.loads(done.stdout)] == ["note"] * 3


@pytest.mark.parametrize(
    ("limit", "settings", "said"),
    [
        (700.0, {}, ""),
        (700.0, {"vboost": "1"}, ""),
        (500.0, {}, "power limit 500 of 700 W: `nvidia-smi -pl 700`"),
        (700.0, {"vboost": "0"}, "published H200 pools set vboost 1; here 0"),
    ],
)
def test_a_setting_that_slows_a_card_is_a_note(
    limit: float, settings: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml, "power_limits", lambda: [(700.0, 700.0), (limit, 700.0)])
    monkeypatch.setattr(nvml, "gpu_settings", lambda: settings)
    (check,) = (each for each in doctor.CHECKS if each.name == "GPU settings")
    found = doctor.finding(check, DEMO)
    assert found.status == ("note" if said else "ok") and said in found.found


@pytest.mark.parametrize("flag", ["--workload", "--dataset-path"])
@pytest.mark.parametrize("kind", ["missing", "pipe", "device", "folder", "damaged"])
def test_what_the_run_would_refuse_as_data_fails(flag: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "damaged":
        path.write_text("{")
    name = flag.removeprefix("--").replace("-", "_")
    config = RunConfig(**{"model": "demo", "mode": "performance", name: str(path)})
    failed = [row for row in doctor.findings(config) if row.status == "failed"]
    assert any(flag in row.found or str(path) in row.found for row in failed)


def test_samples_that_can_be_read_are_counted() -> None:
    rows = {row.name: row for row in doctor.findings(RunConfig(model="demo", mode="performance", workload="chat"))}
    assert rows["samples"].status == "ok" and "40" in rows["samples"].found
