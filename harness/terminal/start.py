"""What every command begins with: standard streams, UTF-8, the token by both names."""

import codecs
import locale
import os
import sys

from harness.common.coerce import check_printable, read_given
from harness.common.errors import ends_in_one_line
from harness.common.interrupts import interruptible
from harness.common.paths import CHECKOUT
from harness.common.reading import MIB


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
    lines = read_given("", path, "text", str.splitlines, most=MIB) if path.exists() else []
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        check_printable(f"{path}: line {number}", line)
        if equals and name.strip().isidentifier() and value:
            os.environ.setdefault(name.strip(), value)


def take_token() -> None:
    """Hugging Face's libraries read HF_TOKEN alone; its older name counts as well."""
    if older := os.environ.get("HUGGINGFACE_HUB_TOKEN"):
        os.environ.setdefault("HF_TOKEN", older)


def prepare() -> None:
    """What every command begins with."""
    interruptible()
    open_streams()
    in_utf8()
    with ends_in_one_line():
        read_environment()
    take_token()
