"""The limits of this process's control groups, of both versions and of all groups above: CPU time, and memory.

A container, a Slurm job and a systemd service are such groups. The lowest limit from a process's own group up to the
root holds for it, and all processes below the group that has it share it.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

OWN_GROUPS = Path("/proc/self/cgroup")
# Folders in which the groups of a controller may begin, below the place where all are mounted: version 2 alone,
# version 2 beside version 1, and version 1, whose controllers may share a folder.
VERSION_2_FOLDERS = (".", "unified")  # alone, and beside version 1
CPU_FOLDERS = (*VERSION_2_FOLDERS, "cpu", "cpu,cpuacct", "cpuacct,cpu")
USAGE_FOLDERS = ("cpuacct", "cpu,cpuacct", "cpuacct,cpu")
MEMORY_FOLDERS = (*VERSION_2_FOLDERS, "memory")
VERSION_2 = ""  # the line of version 2 in OWN_GROUPS names no controller
UNLIMITED_BYTES = 2**60  # version 1 writes a number about this large if there is no limit


class CpuLimit(NamedTuple):
    """A quota of CPU time, in cores, and the seconds that the processes which share it have used; None if unknown."""

    cores: float
    used_s: float | None


class MemoryLimit(NamedTuple):
    """A limit of memory and what of it can still be taken, in bytes; `free` is None if unknown."""

    most: int
    free: int | None


def own_paths() -> Mapping[str, str]:
    """Return the path of this process's control group by controller, such as "cpu".

    The group of version 2 is under the empty name (VERSION_2). Empty if the kernel lists no groups.
    """
    paths = {}
    with suppress(OSError, ValueError):
        for line in OWN_GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                paths[controller] = path
    return paths


def group_folders(root: Path, folders: tuple[str, ...], controller: str) -> Iterator[Path]:
    """Yield the folders of this process's group and of all groups above it that can be seen, its own group first.

    `root` is the mount of all groups. `folders` are the folders in it where groups may begin, such as CPU_FOLDERS.
    `controller` is the controller's name in version 1, such as "cpu".
    """
    paths = own_paths()
    for folder in folders:
        base = root / folder
        if not base.is_dir():
            continue
        is_version_2 = folder in VERSION_2_FOLDERS
        group_path = paths.get(VERSION_2 if is_version_2 else controller, "/")
        names = [name for name in group_path.split("/") if name and name != ".."]
        # In a container, the kernel may give the group's path on the host, of which only the end exists here.
        while names and not base.joinpath(*names).is_dir():
            names = names[1:]
        for depth in range(len(names), -1, -1):
            yield base.joinpath(*names[:depth])


def first_numbers(path: Path) -> list[int]:
    """Return the whole numbers in the first line of a file.

    Empty if there is no such file, or if a word of the line is no number, such as `max`.
    """
    with suppress(OSError, ValueError, IndexError):
        words = path.read_text().splitlines()[0].split()
        return list(map(int, words))
    return []


def named_count(path: Path, *names: str) -> int | None:
    """Return a count from a group's file, whose lines are "NAME COUNT": that of the first of `names` in the file.

    None if the file has none of the names, or cannot be read.
    """
    with suppress(OSError, ValueError):
        counts = {}
        for line in path.read_text().splitlines():
            name, count = line.split(" ", 1)
            counts[name] = count
        for name in names:
            if name in counts:
                return int(counts[name])
    return None


def cpu_limit(root: Path) -> CpuLimit | None:
    """Return the lowest quota of CPU time among this process's group and the groups above. None if none has a quota.

    `root` is the mount of all groups.
    """
    limits = []
    for group in group_folders(root, CPU_FOLDERS, "cpu"):
        quota_and_period = first_numbers(group / "cpu.max")
        if not quota_and_period:  # Version 1 keeps the two in files of their own, each of one number.
            quota_and_period += first_numbers(group / "cpu.cfs_quota_us")[:1]
            quota_and_period += first_numbers(group / "cpu.cfs_period_us")[:1]
        has_quota = len(quota_and_period) == 2 and min(quota_and_period) > 0  # In version 1, a quota of -1 means none.
        if has_quota:
            quota, period = quota_and_period
            limits.append(CpuLimit(quota / period, used_s(root, group)))
    return min(limits, key=attrgetter("cores"), default=None)


def path_below_controller(root: Path, group: Path) -> Path:
    """Return the path of a group from the folder of the CPU's controller: a/b for the group cpu/a/b."""
    containing_folders = [folder for folder in CPU_FOLDERS if group.is_relative_to(root / folder)]
    if not containing_folders:
        return Path()
    # The first of CPU_FOLDERS is the mount itself, which contains every group. The controller's folder is the last.
    return group.relative_to(root / containing_folders[-1])


def used_s(root: Path, group: Path) -> float | None:
    """Return the CPU seconds that the processes of a group have used. None if unknown.

    `root` is the mount of all groups, `group` the folder of the group.
    """
    used_us = named_count(group / "cpu.stat", "usage_usec")  # version 2
    if used_us is not None:
        return used_us / 1e6
    # Version 1 counts the time in the folder of another controller, at the same path: for a group cpu/a/b, that is
    # cpuacct/a/b.
    group_path = path_below_controller(root, group)
    for folder in USAGE_FOLDERS:
        used_ns = first_numbers(root / folder / group_path / "cpuacct.usage")
        if used_ns:
            return used_ns[0] / 1e9
    return None


def memory_limit(root: Path) -> MemoryLimit | None:
    """Return the lowest limit and the least free memory of this process's group and the groups above it.

    The two may be of different groups. None if no group has a limit. `root` is the mount of all groups.
    """
    limits = []
    for group in group_folders(root, MEMORY_FOLDERS, "memory"):
        # Version 2 has the limit in the first file, version 1 in the second.
        limits_of_group = [*first_numbers(group / "memory.max"), *first_numbers(group / "memory.limit_in_bytes")]
        # Version 1 also gives the lowest limit of the group and all groups above, some of which cannot be seen here.
        lowest_of_all = named_count(group / "memory.stat", "hierarchical_memory_limit")
        if lowest_of_all:
            limits_of_group.append(lowest_of_all)
        lowest = min(limits_of_group, default=0)
        if 0 < lowest < UNLIMITED_BYTES:  # Version 1 writes a huge number for no limit.
            limits.append(MemoryLimit(lowest, free_bytes(group, lowest)))
    if not limits:
        return None
    # Other processes share the groups above, so a group with a higher limit may have less free memory.
    known_free = [limit.free for limit in limits if limit.free is not None]
    return MemoryLimit(min(limit.most for limit in limits), min(known_free, default=None))


def free_bytes(group: Path, most: int) -> int | None:
    """Return the bytes of memory that a group with the limit `most` can still take. None if its use is not known.

    Cached files that the kernel can drop (inactive) count as free.
    """
    used = first_numbers(group / "memory.current") or first_numbers(group / "memory.usage_in_bytes")
    if not used:
        return None
    droppable = named_count(group / "memory.stat", "total_inactive_file", "inactive_file") or 0
    return max(0, most - max(0, used[0] - droppable))
