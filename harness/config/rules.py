"""Rules across settings: each message, and when it applies."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

# What is refused: each message, in which {run.NAME} is filled in, and when it is so. `run.given` are the settings that
# the user named.
When = str | Callable[[Any], object]  # an attribute of the run that holds something, or what is made of the run
Rules = Mapping[str, When]


def is_so(when: When, run: object) -> object:
    return attrgetter(when)(run) if isinstance(when, str) else when(run)


def broken(rules: Rules, run: object) -> list[str]:
    """The messages of the rules that a run breaks."""
    return [message.format(run=run) for message, when in rules.items() if is_so(when, run)]
