"""Limits of CPU time and memory in groups of both versions, at each depth, as a machine or a container sees them."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.core import control_groups, system

GIB = 2**30
CORES, MEMORY = 64, 256 * GIB
NAMES = ("slurm", "job_7", "step_0", "task_1")
# The kernel's layouts: the folders in which groups of CPU time, of its use and of memory begin, and whether the
# process's own groups stand there in version 2's way.
LAYOUTS = {
    "version 2": (".", ".", ".", True),
    "version 1": ("cpu", "cpuacct", "memory", False),
    "version 1, shared folder": ("cpu,cpuacct", "cpu,cpuacct", "memory", False),
    "both, limits in version 1": ("cpu", "cpuacct", "memory", False),
    "both, limits in version 2": ("unified", "unified", "unified", True),
}


class Groups:
    """Folders and files as the kernel shows them below its mount."""

    def __init__(self, root: Path, layout: str) -> None:
        self.root = root / "cgroup"
        self.cpu, self.use, self.memory, self.is_version_2 = LAYOUTS[layout]
        for folder in (self.cpu, self.use, self.memory):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        if layout.startswith("both"):
            (self.root / "unified").mkdir(exist_ok=True)
        self.own = root / "own_groups"

    def enter(self, path: str, seen: str | None = None) -> None:
        """Say that the process is in the group `path`, of which the mount shows `seen`."""
        controllers = ("cpu,cpuacct", "memory", "pids") if not self.is_version_2 else ()
        lines = [f"{number}:{names}:{path}" for number, names in enumerate(controllers, start=1)]
        self.own.write_text("\n".join([*lines, f"0::{path if self.is_version_2 else '/'}"]) + "\n")
        for folder in (self.cpu, self.use, self.memory):
            (self.root / folder / (path if seen is None else seen).strip("/")).mkdir(parents=True, exist_ok=True)

    def limit_cpu(self, group: str, quota: int | None, period: int = 100_000) -> None:
        place = self.root / self.cpu / group
        if self.is_version_2:
            (place / "cpu.max").write_text(f"{'max' if quota is None else quota} {period}\n")
            (place / "cpu.stat").write_text("usage_usec 5000000\nuser_usec 1\n")
            return
        (place / "cpu.cfs_quota_us").write_text(f"{-1 if quota is None else quota}\n")
        (place / "cpu.cfs_period_us").write_text(f"{period}\n")
        (place / "cpu.stat").write_text("nr_periods 0\nnr_throttled 0\n")
        (self.root / self.use / group / "cpuacct.usage").write_text("5000000000\n")

    def limit_memory(self, group: str, most: int | None, used: int = 0, droppable: int = 0) -> None:
        place = self.root / self.memory / group
        if self.is_version_2:
            (place / "memory.max").write_text("max\n" if most is None else f"{most}\n")
            (place / "memory.current").write_text(f"{used}\n")
            (place / "memory.stat").write_text(f"anon 1\ninactive_file {droppable}\n")
            return
        (place / "memory.limit_in_bytes").write_text(f"{9223372036854771712 if most is None else most}\n")
        (place / "memory.usage_in_bytes").write_text(f"{used}\n")
        (place / "memory.stat").write_text(f"cache 1\ntotal_inactive_file {droppable}\n")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine of 64 cores and 256 GiB, of which all are free."""
    memory = type("Memory", (), {"total": MEMORY, "available": MEMORY})
    monkeypatch.setattr(system.os, "sched_getaffinity", lambda pid: set(range(CORES)))
    monkeypatch.setattr(system.psutil, "virtual_memory", lambda: memory)
    return monkeypatch


def made(machine: pytest.MonkeyPatch, place: Path, layout: str) -> Groups:
    groups = Groups(place, layout)
    machine.setattr(system, "CGROUP", groups.root)
    machine.setattr(control_groups, "OWN_GROUPS", groups.own)
    return groups


@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    depth=st.integers(0, 4),
    quotas=st.dictionaries(st.integers(0, 4), st.one_of(st.none(), st.integers(1_000, 10_000_000)), max_size=5),
    period=st.sampled_from([10_000, 100_000, 1_000_000]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
def test_the_lowest_quota_from_the_own_group_to_the_root_holds(
    layout: str,
    depth: int,
    quotas: dict[int, int | None],
    period: int,
    machine: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    groups = made(machine, tmp_path_factory.mktemp("groups"), layout)
    groups.enter("/" + "/".join(NAMES[:depth]))
    limits_seen = {level: quota for level, quota in quotas.items() if level <= depth}
    for level, quota in limits_seen.items():
        groups.limit_cpu("/".join(NAMES[:level]), quota, period)
    lowest = min((quota for quota in limits_seen.values() if quota), default=None)
    expected = CORES if lowest is None else min(CORES, -(-lowest // period))
    assert system.core_count() == expected
    assert (system.container_cpu_s() is None) == (expected == CORES)
    if expected < CORES:
        assert system.container_cpu_s() == 5.0


@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    depth=st.integers(0, 4),
    limits=st.dictionaries(st.integers(0, 4), st.one_of(st.none(), st.integers(1, 512)), max_size=5),
    use=st.tuples(st.integers(0, 64), st.integers(0, 64)),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
def test_the_lowest_limit_of_memory_holds_and_what_is_used_of_it_is_not_free(
    layout: str,
    depth: int,
    limits: dict[int, int | None],
    use: tuple[int, int],
    machine: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    used, droppable = use
    groups = made(machine, tmp_path_factory.mktemp("groups"), layout)
    groups.enter("/" + "/".join(NAMES[:depth]))
    limits_seen = {level: limit for level, limit in limits.items() if level <= depth}
    for level, limit in limits_seen.items():
        most = None if limit is None else limit * GIB
        groups.limit_memory("/".join(NAMES[:level]), most, used * GIB, droppable * GIB)
    lowest = min((limit * GIB for limit in limits_seen.values() if limit is not None), default=MEMORY)
    assert system.memory_bytes() == min(lowest, MEMORY)
    taken = max(0, used - droppable) * GIB
    free = MEMORY if lowest == MEMORY and not any(limits_seen.values()) else max(0, lowest - taken)
    assert system.free_memory_bytes() == min(MEMORY, free)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seen", ["", "pod/inner", "inner"])
def test_a_container_sees_an_end_of_its_path_or_nothing(
    layout: str, seen: str, machine: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    groups = made(machine, tmp_path, layout)
    groups.enter("/kubepods/pod/inner", seen)
    groups.limit_cpu(seen, 200_000)
    groups.limit_memory(seen, 8 * GIB)
    assert (system.core_count(), system.memory_bytes()) == (2, 8 * GIB)


def test_version_1_says_what_groups_above_allow_that_are_not_seen(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    groups = made(machine, tmp_path, "version 1")
    groups.enter("/docker/abc", "")
    groups.limit_memory("", None)
    (groups.root / "memory" / "memory.stat").write_text(f"cache 1\nhierarchical_memory_limit {6 * GIB}\n")
    assert system.memory_bytes() == 6 * GIB


@pytest.mark.parametrize("text", ["", "max", "-1", "x y", "100000", "0 0", "\0", "9" * 5000])
def test_a_file_that_says_something_else_limits_nothing(text: str, machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    groups = made(machine, tmp_path, "version 2")
    groups.enter("/")
    for name in ("cpu.max", "memory.max", "memory.current", "memory.stat", "cpu.stat"):
        (groups.root / name).write_text(text)
    assert system.core_count() == CORES
    assert system.memory_bytes() == (100_000 if text == "100000" else MEMORY)


def test_groups_in_a_file_that_cannot_be_read_are_the_root(machine: pytest.MonkeyPatch, tmp_path: Path) -> None:
    groups = made(machine, tmp_path, "version 1")
    for text in (None, "", "no colons\n", "1:cpu:/../../elsewhere\n"):
        groups.own.unlink(missing_ok=True)
        if text is not None:
            groups.own.write_text(text)
        groups.limit_cpu("", 300_000)
        assert system.core_count() == 3
