"""The names of bars that stand for runs on several machines."""

from types import SimpleNamespace

from harness.report import compare_picture


def run(label: str, *gpus: str) -> SimpleNamespace:
    system = SimpleNamespace(gpus=list(gpus), cpu="a CPU")
    meta = SimpleNamespace(label=label)
    return SimpleNamespace(summary=SimpleNamespace(meta=meta, system=system, gpu_models=system.gpus))


def test_bars_of_several_machines_are_named_by_their_gpus() -> None:
    runs = [run("fp8", "NVIDIA H200"), run("fp8", *["NVIDIA L40S"] * 2), run("fp8")]
    names = compare_picture.names_of_runs(runs)  # type: ignore[arg-type]
    assert names == ["A: H200: fp8", "B: 2x L40S: fp8", "C: a CPU: fp8"]
    assert compare_picture.names_of_runs(runs[:1] * 2) == ["A: fp8", "B: fp8"]  # type: ignore[arg-type]
