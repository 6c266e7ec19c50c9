"""Load by other programs: noticed, said, and no verdict of a sweep."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import psutil
import pytest

from harness.loadgen import background_load
from harness.loadgen.background_load import BackgroundLoad, CpuReading
from tests.conftest import tells

NO_CPU_TIMES = type(psutil.cpu_times())(*[0.0] * len(psutil.cpu_times()))
BURN = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
WATCH = """
import time
from harness.loadgen import background_load as others
with others.watch_others() as found:
    time.sleep(2)
print(found.cpu_cores, *found.warnings(), sep="\\n")
"""


def own_s() -> float:
    return sum(background_load.cpu_by_process([os.getpid()]).values())


def spin(seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
    end = clock() + seconds
    while clock() < end:
        pass


def test_what_this_process_and_its_children_use_is_its_own() -> None:
    before = own_s()
    with subprocess.Popen([sys.executable, "-c", BURN]) as child:
        spin(1.0, time.process_time)  # seconds of the processor, on however busy a machine
        both = own_s() - before
        child.kill()
    assert both > 1.1
    assert own_s() - before > both - 0.05  # of a child that has ended, too


def test_what_another_program_uses_is_noticed() -> None:
    # its own process looks: to this one, which may adopt orphans by now, the burner is a child.
    with subprocess.Popen([sys.executable, "-c", BURN]) as burner:
        found = subprocess.run([sys.executable, "-c", WATCH], capture_output=True, text=True, check=True)
        burner.kill()
    cores, said = found.stdout.splitlines()
    assert float(cores) > 0.5
    assert "CPU cores during the test" in said


def test_a_client_that_is_at_its_limit_says_so() -> None:
    with background_load.watch_others(endpoints=["http://192.0.2.1/v1"]) as busy:
        spin(2)
    with background_load.watch_others(endpoints=["http://192.0.2.1/v1"]) as idle:
        time.sleep(1.1)
    assert busy.client_share is not None and busy.client_share > 0  # of a core that others may use as well
    assert idle.client_share is not None and idle.client_share < busy.client_share
    assert tells(BackgroundLoad(client_share=0.99).warnings()[0], "client", "99 % of a core")
    assert BackgroundLoad(client_share=0.5).warnings() == []


@pytest.mark.parametrize("online", [(0, 1, 2), (0, 2, 4)])
def test_what_another_program_uses_of_other_cores_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, online: tuple[int, ...]
) -> None:
    """Some cores may be off, as without hyper-threads."""
    times = [NO_CPU_TIMES._replace(user=user, idle=100.0) for user in (10.0, 500.0, 3.0)]
    (tmp_path / "stat").write_text("".join(f"cpu{name} 1 2 3\n" for name in ("", *online)))
    monkeypatch.setattr(background_load, "CPU_TIMES", tmp_path / "stat")
    monkeypatch.setattr(background_load.psutil, "cpu_times", lambda percpu: times)
    monkeypatch.setattr(background_load, "cores", lambda: {online[0], online[2]})
    assert background_load.busy_s() == 13.0


def test_a_gpu_that_others_hold_is_named() -> None:
    (said,) = BackgroundLoad(cpu_cores=1.0, cores=64, gpus=[1], most_cpu_share=0.5).warnings()
    assert tells(said, "other programs", "GPU 1")
    assert BackgroundLoad(cpu_cores=1.0, cores=64, most_cpu_share=0.5).warnings() == []
    assert BackgroundLoad(cpu_cores=0.1, cores=2).warnings() == []
    (said,) = BackgroundLoad(cpu_cores=1.5, cores=2).warnings()
    assert tells(said, "other programs", "1.5 of 2 CPU cores")


SERVER = """
import http.server, sys, threading
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
import time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end: pass
time.sleep(60)
"""
BEHIND = """
import os, sys, time
from harness.loadgen import background_load as others
address, *machine = sys.argv[1:]
others.busy_s = lambda: sum(others.cpu_by_process([*map(int, machine), os.getpid()]).values())
with others.watch_others(endpoints=[address]) as found:
    time.sleep(3)
print(found.cpu_cores, *found.warnings(), sep="\\n")
"""


def behind(address: str, *machine: int) -> str:
    """The cores that others take, as its own process sees it behind an endpoint."""
    words = [sys.executable, "-c", BEHIND, address, *map(str, machine)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[0]


def test_a_server_on_the_same_cores_is_no_other_program() -> None:
    server = subprocess.Popen([sys.executable, "-c", SERVER, "60"], stdout=subprocess.PIPE, text=True)
    burner = subprocess.Popen([sys.executable, "-c", BURN])
    try:
        assert server.stdout
        address = f"http://localhost:{int(server.stdout.readline())}/v1"
        # What a process used is read at two moments, which lie apart on a busy machine.
        of_others = float(behind(address, server.pid, burner.pid))
        assert float(behind(address, server.pid)) < of_others / 2
        # Of a server elsewhere this one is no part.
        assert float(behind("http://192.0.2.1:8000/v1", server.pid)) > 0.02
    finally:
        server.kill()
        burner.kill()


def test_what_cannot_be_told_from_a_server_is_not_measured() -> None:
    assert behind("http://127.0.0.1:9/v1") == "None"  # nobody listens there that this process can see


class Listener(NamedTuple):
    """A connection as psutil lists it."""

    pid: int | None
    status: str = "LISTEN"
    laddr: SimpleNamespace = SimpleNamespace(port=8000)


@pytest.mark.parametrize(
    ("listeners", "relays", "reason"),
    [
        ([], background_load.RELAYS, "port 8000 is forwarded"),
        ([Listener(None)], background_load.RELAYS, "another user"),
        ([Listener(os.getpid())], ("",), "forwards the server's port"),
        ([Listener(2**22)], background_load.RELAYS, "cannot be read"),
    ],
)
def test_each_reason_for_an_unknown_server_has_its_own_words(
    monkeypatch: pytest.MonkeyPatch, listeners: list[Listener], relays: tuple[str, ...], reason: str
) -> None:
    monkeypatch.setattr(background_load.psutil, "net_connections", lambda kind: listeners)
    monkeypatch.setattr(background_load, "RELAYS", relays)
    servers = background_load.servers_here(["http://127.0.0.1:8000/v1"])
    assert reason in servers.unknown and not servers.process_ids


def test_the_load_of_others_is_read_from_second_to_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores: others take all of one in the first second, and nothing in the next two."""
    readings = iter(
        [
            CpuReading(10.0, 100.0, {1: 50.0}),
            CpuReading(11.0, 101.5, {1: 50.25, 2: 0.25}),  # process 2 is a new child
            CpuReading(13.0, 103.5, {1: 52.25, 2: 0.25}),
        ]
    )
    monkeypatch.setattr(background_load.CpuReading, "take", lambda processes: next(readings))
    monkeypatch.setattr(background_load, "core_count", lambda: 2)
    meter = background_load.OthersMeter()
    assert [meter.percent(), meter.percent()] == [50.0, 0.0]


def test_beside_a_server_whose_processes_are_unknown_the_load_of_others_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unknown = background_load.LocalServers(unknown="it cannot be read")
    monkeypatch.setattr(background_load, "servers_here", lambda addresses: unknown)
    assert background_load.OthersMeter(("http://127.0.0.1:1/v1",)).percent() is None
