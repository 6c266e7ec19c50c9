"""Text for messages: what a terminal would obey is removed, long words and lines are cut."""

import re
import sys
from textwrap import shorten
from typing import TextIO

# Characters that a terminal obeys: control characters except the tab and the line feed, line separators, and marks that
# change the direction of text.
CONTROL_CHARACTERS = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]"
LONGEST_PATH = 2**12  # characters of a path; a longer word is cut as any other
LONGEST_WORD = 200  # characters of a word that is no path
LONGEST_LINE = 900  # characters of a line, without its long paths
LONGEST_QUOTE = 600  # characters of another program's message that is quoted in a line


def printable_text(text: str) -> str:
    """Return text without characters that a terminal would obey."""
    return re.sub(CONTROL_CHARACTERS, "\ufffd", text)


def say(text: object, file: TextIO | None = None) -> None:
    """Print lines on standard output or on `file`, without characters that a terminal would obey.

    Every command prints through this function, since a name or a message may come from a folder of another person.
    """
    print(printable_text(str(text)), file=file)


def warn(text: object) -> None:
    """Print lines on standard error, without characters that a terminal would obey. Lines that are too long are cut."""
    say("\n".join(line_of(line) for line in str(text).split("\n")), sys.stderr)


def system_reason(error: OSError) -> str:
    """Return the operating system's reason for an error in words."""
    return error.strerror or first_line(error)


def line_of(text: str) -> str:
    """Return one line of a message with its long words cut, and the line cut if it is still too long.

    A long path, up to LONGEST_PATH characters, is neither cut nor counted: the user could do nothing with a part of it.
    """
    words = []
    length = 0  # of all words but the long paths
    for word in text.split(" "):
        is_long_path = LONGEST_WORD < len(word) <= LONGEST_PATH and "/" in word
        if is_long_path:
            words.append(word)
            continue
        short_word = word
        if len(word) > LONGEST_WORD:
            short_word = f"{word[:LONGEST_WORD]}..."
        length += len(short_word) + 1
        if length > LONGEST_LINE:
            words.append("...")
            break
        words.append(short_word)
    return " ".join(words)


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message that is not blank, or its type's name if the message is empty.

    A very long line is cut between two words.
    """
    line = next(filter(str.strip, str(error).splitlines()), type(error).__name__)
    return shorten(line, LONGEST_QUOTE, placeholder=" ...")
