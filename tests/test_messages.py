"""tests/messages.txt holds every message as it is today, and is the one place where a rewording shows."""

import pytest

from tests import messages

pytestmark = pytest.mark.slow  # for whoever changes how settings are checked

SOURCE = """
def f(count, name):
    if count:
        raise UsageError(f"--a {name!r:.40}: {count:,} at most; got {'none' if name else 'two'}.")
    raise errors.EngineError("it hangs" if name else "it is gone") from None
    parser.error("name one" + " RUN")
    print("error: no packages", file=sys.stderr)
    print("all is well")
    raise ValueError(name)
    raise UsageError("it hangs")
"""


def test_the_messages_are_those_of_the_source() -> None:
    assert messages.SNAPSHOT.read_text() == messages.current(), f"messages changed: `{messages.COMMAND}`, read the diff"


def test_what_a_message_is() -> None:
    assert messages.texts(SOURCE) == [
        "--a {}: {} at most; got {}.",
        "it hangs",
        "it is gone",
        "name one RUN",
        "error: no packages",
    ]


def test_lines_above_change_nothing() -> None:
    assert messages.texts("\n" * 50 + SOURCE) == messages.texts(SOURCE)
