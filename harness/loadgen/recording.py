"""The table that a test leaves of its machine, machine.csv, and the energy by it. Needs no package."""

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Self

from harness.core import files
from harness.core.errors import UsageError

FILE = "machine.csv"
LONGEST_GAP_S = 5.0  # between two readings, over which no energy is summed


class Recording(NamedTuple):
    """machine.csv: its seconds, and the columns of numbers beside them, None where one was not reported."""

    seconds: list[float]
    columns: files.Columns

    @classmethod
    def read(cls, path: Path) -> Self:
        """Empty where nothing was recorded. Raises UsageError for a damaged file."""
        columns = files.read_columns(path) if path.exists() else {}
        seconds = columns.pop("seconds", [])
        if None in seconds or (columns and not seconds):
            raise UsageError(f"{path}: a line has no seconds.")
        return cls([second for second in seconds if second is not None], columns)

    @property
    def durations(self) -> list[float]:
        """Seconds for which each line counts: since the one before, as a busy machine writes some lines late."""
        return [now - before for before, now in pairwise([0.0, *self.seconds])]

    @property
    def gpus(self) -> list[str]:
        return sorted({name.partition("_")[0] for name in self.columns if name.startswith("gpu")})

    def column(self, name: str) -> list[float | None]:
        """A column; one without values where it was not recorded."""
        return self.columns.get(name) or [None] * len(self.seconds)

    def highest(self, name: str) -> float:
        """The highest value that any GPU reported of a quantity; 0 for none."""
        return max((value or 0.0 for gpu in self.gpus for value in self.column(f"{gpu}_{name}")), default=0.0)

    @property
    def missing(self) -> int:
        """In how many readings a GPU reported no power, or none was reported at all."""
        powers = [self.column(f"{gpu}_power_w") for gpu in self.gpus]
        return sum(not powers or None in reading for reading in zip(self.seconds, *powers, strict=True))

    @property
    def joules(self) -> float | None:
        """The energy of all GPUs by their power at each reading; None where one reported nothing for a while."""
        total = 0.0
        for gpu in self.gpus:
            powers = zip(self.seconds, self.column(f"{gpu}_power_w"), strict=True)
            readings = [(second, power) for second, power in powers if power is not None]
            if not readings:
                return None
            readings = [(0.0, readings[0][1]), *readings, (self.seconds[-1], readings[-1][1])]
            if any(now - then > LONGEST_GAP_S for (then, _), (now, _) in pairwise(readings)):
                return None
            total += sum((now - then) * (power + before) / 2 for (then, before), (now, power) in pairwise(readings))
        return total if self.gpus else None
