"""GPUs behind an endpoint, by the page of a DCGM exporter."""

import contextlib
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.engines import discovery
from harness.loadgen import exporter
from harness.loadgen.test_run import Recording
from tests.conftest import ended, patience
from tests.support.fake_servers import Fake, serving

# As dcgm-exporter 3.3 writes it with its default counters, of two GPUs; cut to what is read, and a metric that is not.
LABELS = (
    'gpu="{gpu}",UUID="GPU-{gpu}",pci_bus_id="0000:0{gpu}",device="nvidia{gpu}",modelName="NVIDIA H100 80GB HBM3",'
    'Hostname="node7",DCGM_FI_DRIVER_VERSION="550.54.15"'
)
VALUES = {
    "DCGM_FI_DEV_SM_CLOCK": (1980, 1410),
    "DCGM_FI_DEV_MEM_CLOCK": (2619, 2619),
    "DCGM_FI_DEV_MEMORY_TEMP": (61, 59),
    "DCGM_FI_DEV_GPU_TEMP": (55, 41),
    "DCGM_FI_DEV_POWER_USAGE": (689.43, 71.2),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": (0, 0),
    "DCGM_FI_DEV_GPU_UTIL": (99, 0),
    "DCGM_FI_DEV_MEM_COPY_UTIL": (54, 0),
    "DCGM_FI_DEV_FB_USED": (74752, 4),
}
PAGE = "".join(
    f"# HELP {name} of a GPU.\n# TYPE {name} gauge\n"
    + "".join(f"{name}{{{LABELS.format(gpu=gpu)}}} {value}\n" for gpu, value in enumerate(values))
    for name, values in VALUES.items()
)


@contextmanager
def page(text: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()


def test_the_servers_gpus_alone_are_read() -> None:
    with page(PAGE) as url:
        (columns,), models = (
            list(found)
            for found in (
                exporter.exporter_reading([f"{url}?gpu=0"]).gpus.values(),
                exporter.exporter_reading([f"{url}?gpu=0"]).models,
            )
        )
        assert (
            len(exporter.exporter_reading([f"{url}?host=node7"])[0])
            == len(exporter.exporter_reading([f"{url}?gpu=0,1"])[0])
            == 2
        )
    assert models == ["NVIDIA H100 80GB HBM3"]
    assert columns == {
        "clock_mhz": 1980.0,
        "memory_clock_mhz": 2619.0,
        "memory_temperature_c": 61.0,
        "temperature_c": 55.0,
        "power_w": 689.43,
        "load_percent": 99.0,
        "memory_load_percent": 54.0,
        "memory_gib": 73.0,
    }


def test_parts_of_a_gpu_are_one_gpu() -> None:
    rows = "".join(
        f'{name}{{gpu="0",Hostname="n",modelName="H100",GPU_I_PROFILE="3g.40gb",GPU_I_ID="{part}"}} {value}\n'
        for name, values in {"DCGM_FI_DEV_FB_USED": (30000, 2000), "DCGM_FI_DEV_POWER_USAGE": (300, 300)}.items()
        for part, value in enumerate(values)
    )
    with page(rows) as url:
        found = exporter.exporter_reading([f"{url}?gpu=0"])
    assert [*found.gpus.values()] == [{"memory_gib": 31.25}] and len(found.split) == 1


MIG = 'gpu="0",Hostname="n",modelName="H100",GPU_I_PROFILE="3g.40gb",GPU_I_ID="{part}"'


@pytest.mark.parametrize(
    ("active", "utilization", "load"),
    [((0.97, 0.4), (0, 0), 97.0), ((0.97,), (), 97.0), ((), (0, 0), None), ((), (50, 60), None), ((), (), None)],
)
def test_the_load_of_a_split_gpu_is_its_parts_or_unknown(
    active: tuple[float, ...], utilization: tuple[float, ...], load: float | None
) -> None:
    """DCGM's GPU_UTIL is 0 there by design, and the power is the whole card's."""
    fields = {
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": active,
        "DCGM_FI_DEV_GPU_UTIL": utilization,
        "DCGM_FI_DEV_POWER_USAGE": (512.0, 512.0),
        "DCGM_FI_DEV_FB_USED": (1024, 1024),
    }
    rows = "".join(
        f"{name}{{{MIG.format(part=part)}}} {value}\n"
        for name, values in fields.items()
        for part, value in enumerate(values)
    )
    with page(rows) as url:
        found = exporter.exporter_reading([f"{url}?gpu=0"])
    (columns,) = found.gpus.values()
    assert columns == {"memory_gib": 2.0} | ({} if load is None else {"load_percent": load})
    lines = [*exporter.gap_notes(found, Recording([1.0, 2.0], {"gpu0_power_w": [None, None]}))]
    assert len(lines) == 1 and "1 of 1 GPUs are split (MIG)" in lines[0]


def test_of_a_whole_gpu_the_share_of_busy_engines_is_not_its_load() -> None:
    row = '{gpu="0",Hostname="n",GPU_I_ID="",GPU_I_PROFILE=""}'
    text = f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{row} 0.5\nDCGM_FI_DEV_GPU_UTIL{row} 99\nDCGM_FI_DEV_POWER_USAGE{row} 300\n"
    with page(text) as url:
        found = exporter.exporter_reading([f"{url}?gpu=0"])
    assert [*found.gpus.values()] == [{"load_percent": 99.0, "power_w": 300.0}] and not found.split


def test_a_damaged_row_does_not_cost_the_others() -> None:
    rows = 'DCGM_FI_DEV_POWER_USAGE{gpu="0",Hostname="n"} \nDCGM_FI_DEV_FB_USED{gpu="0",Hostname="n"} 1024\n'
    with page(rows) as url:
        assert list(exporter.exporter_reading([f"{url}?gpu=0"]).gpus.values()) == [{"memory_gib": 1.0}]


def test_values_that_no_gpu_has_are_left_out() -> None:
    rows = "".join(
        f'DCGM_FI_DEV_POWER_USAGE{{gpu="{n}",Hostname="n"}} {value}\n'
        for n, value in enumerate(("-5", "1e30", "+Inf", "300"))
    )
    with page(rows) as url:
        assert list(exporter.exporter_reading([f"{url}?host=n"])[0].values()) == [{"power_w": 300}]


SPEECHES = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "broken off": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nDCGM",
    "no text": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\xff\xfe\x00\x01",
    "drips": b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 1000,
    "nothing": b"",
}


@pytest.mark.parametrize("kind", SPEECHES)
def test_a_page_that_is_none_ends_in_a_line_with_the_flag_and_soon(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def speak() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                for byte in SPEECHES[kind] if kind == "drips" else [SPEECHES[kind]]:
                    connection.sendall(bytes([byte]) if kind == "drips" else byte)
                    time.sleep(0.2 if kind == "drips" else 0)
                if kind != "nothing":
                    connection.close()

        Thread(target=speak, daemon=True).start()
        begin = time.monotonic()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/metrics?gpu=0"
        with pytest.raises(UsageError, match="--telemetry-url"):
            exporter.exporter_reading([url])
        assert exporter.reading_or_empty([url]) == ({}, [], [])  # during a test: a gap
        assert time.monotonic() - begin < patience(20 * discovery.PAGE_S)


def test_readings_without_values_are_counted() -> None:
    gaps = Recording([1.0, 2.0, 3.0], {"gpu0_power_w": [300.0, None, 300.0], "cpu_percent": [1.0, 1.0, 1.0]})
    assert gaps.missing == 1
    assert Recording([1.0, 2.0], {"cpu_percent": [1.0, 1.0]}).missing == 2


def test_a_gpu_without_a_model_is_unknown() -> None:
    with page(re.sub(r'modelName="[^"]*",', "", PAGE)) as url:
        assert exporter.exporter_reading([f"{url}?gpu=0"])[1] == ["unknown"]


@pytest.mark.parametrize(
    ("query", "text", "said"),
    [
        ("", PAGE, "name the server's GPUs"),
        ("?uuid=7", PAGE, "name the server's GPUs"),
        ("?gpu=0,7", PAGE, "no GPU 7"),
        ("?host=node8", PAGE, "no GPU of host node8"),
        ("?gpu=0", "<html><body>503</body></html>", "no field of DCGM's"),
        ("?gpu=0", "vllm:num_requests_running 1\n", "no field of DCGM's"),
        ("?gpu=0", 'DCGM_FI_DEV_GPU_UTIL{gpu="0"', "not an exporter's page"),
    ],
)
def test_any_other_page_is_refused_before_a_run(query: str, text: str, said: str, tmp_path: Path) -> None:
    with page(text) as url, serving(Fake()) as fake:
        words = ["--endpoint", fake.address, "--telemetry-url", f"{url}{query}", "--results-dir", str(tmp_path)]
        done = ended("run.py", *words)
        asked = len(fake.asked)
    assert done.returncode == 2 and said in done.stderr + done.stdout, done.stderr
    assert asked == 0


def test_it_needs_an_endpoint() -> None:
    with pytest.raises(UsageError, match="--telemetry-url: only with --endpoint"):
        RunConfig(telemetry_url=("http://h:9400/metrics?gpu=0",))
    assert RunConfig(endpoint=("http://h/v1",), telemetry_url=("http://h:9400/metrics?gpu=0",)).extra_metrics


def test_an_exporter_that_goes_away_leaves_a_gap() -> None:
    assert exporter.reading_or_empty(["http://127.0.0.1:9/metrics?gpu=0"]) == ({}, [], [])


@pytest.mark.parametrize(
    ("powers", "expected"),
    [
        ([100.0] * 10, 1000.0),
        ([100.0, 100.0, None, None, None, 100.0, 100.0, 100.0, 100.0, 100.0], 1000.0),
        ([100.0, 200.0, 100.0, 200.0, 100.0, 200.0, 100.0, 200.0, 100.0, 200.0], 100.0 + 9 * 150.0),
        ([100.0, None, None, None, None, None, None, 100.0, 100.0, 100.0], None),
        ([100.0, 100.0, 100.0, None, None, None, None, None, None, None], None),
        ([None] * 10, None),
    ],
)
def test_energy_is_not_summed_over_a_long_gap(powers: list[float | None], expected: float | None) -> None:
    table = Recording([float(n) for n in range(1, 11)], {"gpu0_power_w": powers})
    assert table.joules == (None if expected is None else pytest.approx(expected))
    assert Recording([], {}).joules is None


@pytest.mark.slow
def test_a_run_has_the_columns_and_the_energy(tmp_path: Path) -> None:
    flags = ["--concurrency", "4", "--min-duration", "4", "--mode", "performance", "--results-dir", str(tmp_path)]
    with page(PAGE) as url, serving(Fake(delay_s=0.05)) as fake:
        done = ended("run.py", "--endpoint", fake.address, "--telemetry-url", f"{url}?gpu=0", *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((tmp_path / "latest" / "summary.json").read_text())
    test = summary["run"]["performance"]
    assert test["server_gpus"] == ["NVIDIA H100 80GB HBM3"] and test["usage"]["gpu_power_w"]["mean"] == pytest.approx(
        689.43
    )
    assert test["gpu_joules"] == pytest.approx(689.43 * test["duration_s"], rel=0.4)
    assert test["joules_per_output_token"] > 0 and test["peak_memory_gib"] == 73.0
