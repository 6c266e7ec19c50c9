"""The lock of a run: a file that its process keeps locked, so that others can tell whether the run is still running.

The status "running" is written when a run begins, and a run that is killed cannot correct it.
"""

import fcntl
import json
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

from harness.core.file_limits import MIB

LOCK_FILE = ".running"  # in the run's folder, until its status says how it ended
LARGEST_LOCK_FILE = MIB

Life = Literal["running", "over", "not known"]

_lock_files: dict[Path, int] = {}  # the file descriptors of this process's own runs, by folder


def lock_folder(folder: Path) -> None:
    """Lock a run's folder for this process, so that others can tell that the run is alive.

    A second call changes nothing. If the lock file cannot be written, there is no lock.
    """
    folder = folder.absolute()
    if folder in _lock_files:  # It is locked already.
        return
    path = folder / LOCK_FILE
    with suppress(OSError):
        # Programs that this process starts do not inherit the lock (O_CLOEXEC), and so do not make the run seem alive
        # after its end. A link in place of the lock file is not followed (O_NOFOLLOW): it may lead to a file elsewhere.
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        is_locked = takes_lock(file, path)  # false on a mount without locks
        record = {**machine_identity(), "pid": os.getpid(), "locked": is_locked}
        os.truncate(file, 0)
        os.write(file, json.dumps(record).encode())
        _lock_files[folder] = file


def takes_lock(file: int, path: Path) -> bool:
    """Lock an open file. Return whether others can see the lock, since some mounts refuse or ignore locks.

    To find out, the file at `path` is opened a second time, and a second lock is tried, which must be refused.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        second_file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # The mount refuses locks.
        return False
    try:
        fcntl.flock(second_file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:  # The second lock was refused because of the first, which is what others will see.
        return True
    except OSError:  # The mount refuses a second lock for a reason of its own.
        return False
    finally:
        os.close(second_file)
    return False  # The second lock was granted, so the mount ignores locks.


def unlock_folder(folder: Path) -> None:
    """Unlock the folder of a run whose status says how the run ended, and remove the lock file.

    Nothing is done without a lock.
    """
    file = _lock_files.pop(folder.absolute(), None)
    with suppress(OSError):
        (folder / LOCK_FILE).unlink(missing_ok=True)
        if file is not None:
            os.close(file)


def forget_locks() -> None:
    """Close the locks in a forked process. If it outlives the run, it must not make the run seem alive."""
    while _lock_files:
        _folder, file = _lock_files.popitem()
        with suppress(OSError):
            os.close(file)


os.register_at_fork(after_in_child=forget_locks)


def machine_identity() -> dict[str, str]:
    """Return what distinguishes this machine, its boot and its process numbers from others that see the same folder.

    It has the host's name and, if they can be read, the ids of the boot and of the container's process numbers.
    """
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return {"host": socket.gethostname(), "boot": boot, "processes": os.readlink("/proc/self/ns/pid")}
    return {"host": socket.gethostname()}


def life_of(folder: Path) -> Life:
    """Return whether a run whose status is "running" is still running."""
    if folder.absolute() in _lock_files:  # This process runs it.
        return "running"
    try:
        file = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:  # The lock file is missing, a link, or another user's.
        return "not known"
    try:
        record = record_of(file)  # empty if the lock file is damaged or of an older version
        # Either the mount has no locks, or another host or container made the lock.
        if not record.get("locked") or not is_from_here(record):
            return "not known"
        try:  # A second lock is refused as long as somebody holds the run's lock.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:  # The run holds the lock, or a process that it left behind.
            return "running" if is_alive(record.get("pid")) else "over"
        return "over"  # The second lock was granted, so nobody holds the run's.
    except OSError:  # The lock file cannot be read, or the mount refuses locks.
        return "not known"
    finally:
        os.close(file)


def record_of(file: int) -> Mapping[str, object]:
    """Return the record in an open lock file; empty if it is damaged. Raises OSError if it cannot be read."""
    text = os.read(file, LARGEST_LOCK_FILE)
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def is_from_here(record: Mapping[str, object]) -> bool:
    """Tell whether a lock was made on this machine, in this boot, and with the process numbers of this container.

    Otherwise neither the lock nor the process number in it says anything here.
    """
    here = machine_identity()
    return all(record.get(name) == value for name, value in here.items())


def is_alive(pid: object) -> bool:
    """Tell whether a process is alive. True if that cannot be known, so that nothing of its run is touched."""
    if type(pid) is not int or pid <= 0:  # the lock file does not say which process holds it
        return True
    try:
        os.kill(pid, 0)  # For the number 0, no signal is sent. It is only checked whether one could be sent.
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # such as a process of another user
        return True
    return True
