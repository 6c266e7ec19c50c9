"""Matrix products by their data: what is multiplied, and what the table says, without a GPU."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import trained_tiles, weight_data
from benchmarks.gpu_sensor import Reading, mean_power
from benchmarks.weight_data import Case, CaseData

torch = pytest.importorskip("torch")
SMALL = {"qkv": (48, 32), "o": (32, 32), "gate_up": (64, 32), "down": (32, 64)}


@pytest.fixture
def tiles(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(weight_data, "SHAPES", SMALL)
    weights = {f"{name}.weights": torch.arange(100, dtype=torch.bfloat16) for name in SMALL}
    return weights | {
        f"{name}.inputs": torch.ones(2, width, dtype=torch.bfloat16) for name, (_, width) in SMALL.items()
    }


def test_each_kind_of_data_is_what_its_name_says(tiles: dict[str, Any]) -> None:
    made = {kind: weight_data.weight(kind, "qkv", tiles, (48, 32), "cpu").float() for kind in weight_data.WEIGHTS}
    assert float(made["zero"].abs().max()) == 0
    assert 0.0009 < float(made["dummy"].abs().max()) <= 0.001
    assert float(made["random"].std()) == pytest.approx(0.02, rel=0.1)
    assert made["trained"].flatten().tolist()[:102] == [*range(100), 0, 1]
    gaussian, recorded = (
        weight_data.activation(kind, "o", tiles, (64, 32), "cpu").float() for kind in weight_data.ACTIVATIONS
    )
    assert float(gaussian.std()) == pytest.approx(1, rel=0.1) and bool((recorded == 1).all())


def test_fp8_takes_all_of_its_range_and_leaves_dummies_nearly_zero() -> None:
    tensor = torch.tensor([0.02, -0.01, 0.0])
    assert weight_data.in_fp8(tensor).float().tolist() == [448.0, -224.0, 0.0]
    dummies = torch.empty(1000).uniform_(-1e-3, 1e-3)
    assert set(weight_data.in_fp8(dummies, is_scaled=False).float().abs().tolist()) <= {0.0, 2.0**-9}
    assert weight_data.in_fp8(torch.zeros(3)).float().tolist() == [0.0] * 3


@pytest.mark.parametrize("number_format", weight_data.FORMATS)
def test_a_case_counts_the_work_of_four_products(tiles: dict[str, Any], number_format: str) -> None:
    case = weight_data.measure(CaseData(number_format, 32, "random", "Gaussian"), tiles, "cpu", 0.1)
    assert case.tflops > 0 and set(case.tflops_by_product) == set(SMALL)
    assert case.sm_mhz is None and case.joules_per_tflop is None  # no GPU
    slowest, fastest = min(case.tflops_by_product.values()), max(case.tflops_by_product.values())
    assert slowest <= case.tflops <= fastest


def test_power_is_read_between_changes_of_the_counter() -> None:
    steps = [(0.0, 10.0), (0.5, 10.0), (1.0, 110.0), (1.5, 110.0), (2.0, 310.0), (2.9, 310.0)]
    readings = [Reading(at, 1500, joules, 50) for at, joules in steps]
    assert mean_power(readings) == 200.0
    assert mean_power(readings[:3]) is None and mean_power([]) is None


def test_the_table_compares_with_the_mean_of_the_base() -> None:
    def case(weights: str, tflops: float, power: float | None) -> Case:
        joules = power and power / tflops
        return Case("fp8", 8192, weights, "Gaussian", tflops, {}, power and 1500.0, power, joules, None)

    lines = weight_data.table([case("random", 990.0, 700.0), case("zero", 1200.0, None), case("random", 1010.0, 700.0)])
    assert "| fp8 | 8,192 | random | Gaussian | 990 | -1.0 % | 1500 | 700 | 0.7071 |" in lines
    assert "| fp8 | 8,192 | zero | Gaussian | 1200 | +20.0 % | – | – | – |" in lines
    assert len(lines.splitlines()) == 5


def test_the_base_is_measured_first_and_last() -> None:
    found = [case for case in weight_data.cases() if case[:2] == ("bf16", 2048)]
    assert len(found) == 9 and found[0][2:] == found[-1][2:] == weight_data.BASE
    assert len(set(found)) == len(weight_data.WEIGHTS) * len(weight_data.ACTIVATIONS)


def test_tiles_are_a_checkpoints_matrices_and_inputs(tmp_path: Path) -> None:
    from benchmarks import random_llama

    random_llama.make(tmp_path, 1, "bf16", "small")
    tiles = trained_tiles.checkpoint_tiles(tmp_path / "model", tokens=4, weights=1000)
    assert {name: tuple(tensor.shape) for name, tensor in tiles.items() if "weights" in name} == {
        f"{name}.weights": (1000,) for name in SMALL
    }
    assert tuple(tiles["down.inputs"].shape) == (4, 1024)  # both of its two layers, as they are narrower
    norm = tiles["qkv.inputs"][:, :256].float()  # a norm of ones makes a row's mean square one
    assert float(norm.pow(2).mean()) == pytest.approx(1, rel=0.1)
