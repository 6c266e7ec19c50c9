"""What every command begins with: standard streams, UTF-8, words of a sensible length, the token by both names."""

import codecs
import locale
import os
import sys

from harness.common import reading
from harness.common.coerce import UNPRINTABLE
from harness.common.errors import BAD_INPUT, UsageError, ends_in_one_line, first_line
from harness.common.interrupts import interruptible
from harness.common.paths import CHECKOUT

LONGEST_GIVEN = 2**13  # characters of one word of a command line: twice what a path may have


def open_streams() -> None:
    """Gives a command that was started without them, as by `>&-`, standard streams that lead nowhere."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode))


def in_utf8() -> None:
    """Starts this command over in Python's UTF-8 mode where the locale has another encoding.

    Data, reports and the sources that torch reads are in UTF-8 on every machine.
    """
    if codecs.lookup(locale.getpreferredencoding(False)).name != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def read_environment() -> None:
    """Takes the variables of a checkout's `.env`, as `docker run --env-file` does: NAME=VALUE, without quotes; what is
    set already wins. Raises UsageError."""
    path = CHECKOUT / ".env"
    if not path.exists():
        return
    try:
        lines = reading.read_text(path, reading.MIB, encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {first_line(error)}.") from None
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        if UNPRINTABLE.search(line):
            raise UsageError(f"{path}: line {number}: a control character in it.")
        if equals and name.strip().isidentifier() and value:
            os.environ.setdefault(name.strip(), value)


def take_token() -> None:
    """Hugging Face's libraries read HF_TOKEN alone; its older name counts as well."""
    if older := os.environ.get("HUGGINGFACE_HUB_TOKEN"):
        os.environ.setdefault("HF_TOKEN", older)


def check_words() -> None:
    """Ends a command with a word that is longer than anything it takes, and no path, before it is echoed."""
    for word in sys.argv[1:]:
        if len(word) > LONGEST_GIVEN:
            flag = word.partition("=")[0] if word.startswith("--") else word
            print(f"error: {flag[:40]}: {len(word):,} characters; that is no value of a flag.", file=sys.stderr)
            raise SystemExit(BAD_INPUT)


def prepare() -> None:
    """What every command begins with."""
    interruptible()
    check_words()
    open_streams()
    in_utf8()
    with ends_in_one_line():
        read_environment()
    take_token()
