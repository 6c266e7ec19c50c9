"""The first steps of every command: open standard streams, switch to UTF-8, read `.env`."""

import codecs
import locale
import os
import sys

from harness.core.errors import UsageError, one_line_errors
from harness.core.file_limits import LARGEST_LIST
from harness.core.given_values import check_path, check_printable, read_given
from harness.core.interrupts import enable_interrupts
from harness.core.locations import CHECKOUT
from harness.core.message_text import system_reason
from harness.core.web_addresses import ADDRESS_VARIABLES, is_usable
from harness.core.word_list import names_in


def open_streams() -> None:
    """Open each standard stream that the command was started without, for example by `>&-`, so that it leads nowhere.

    Otherwise the next file that is opened would get the number of that stream, and the stream's output.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # The system gives the lowest free number, so mostly `number`.
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)  # so that programs that this one starts have the stream, too
            setattr(sys, name, os.fdopen(number, mode))


def restart_in_utf8() -> None:
    """Replace this process by the same command in Python's UTF-8 mode, if the locale has another encoding.

    Data, reports and the sources that torch reads are in UTF-8 on every machine.
    """
    if codecs.lookup(locale.getpreferredencoding(False)).name != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


FOLDER_VARIABLES = names_in(
    """
    HF_HOME HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_ASSETS_CACHE HUGGINGFACE_ASSETS_CACHE HF_XET_CACHE HF_TOKEN_PATH
    HF_DATASETS_CACHE HF_DATASETS_DOWNLOADED_DATASETS_PATH HF_DATASETS_EXTRACTED_DATASETS_PATH HF_MODULES_CACHE
    XDG_CACHE_HOME XDG_CONFIG_HOME VLLM_CACHE_ROOT VLLM_CONFIG_ROOT VLLM_ASSETS_CACHE TORCH_HOME
    TORCHINDUCTOR_CACHE_DIR TRITON_CACHE_DIR NLTK_DATA TMPDIR TEMP TMP MPLCONFIGDIR
    """
)


def read_environment() -> None:
    """Set the variables of a checkout's `.env`, then check the variables that hold folders and addresses.

    A variable that is set already keeps its value. Lines are NAME=VALUE without quotes, as for `docker run --env-file`.
    Raises UsageError for control characters, a folder that is an address, or an unusable address.
    """
    path = CHECKOUT / ".env"
    lines = list[str]()
    if path.exists():
        lines = read_given("", path, "text", str.splitlines, most=LARGEST_LIST)
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        check_printable(f"{path}: line {number}", line)
        if equals and name.strip().isidentifier() and value:
            os.environ.setdefault(name.strip(), value)
    for name in FOLDER_VARIABLES:
        check_path(name, os.environ.get(name))
    for name, example in ADDRESS_VARIABLES.items():
        address = os.environ.get(name)
        if address and not is_usable(address):
            raise UsageError(f"{name} must be an address such as {example}.")


def prepare() -> None:
    """Take the first steps of every command: signals, streams, encoding and environment.

    If the current folder was deleted or the environment cannot be used, end the process with one line.
    """
    enable_interrupts()
    open_streams()
    restart_in_utf8()
    with one_line_errors():
        try:
            os.getcwd()
        except OSError as error:  # the folder was deleted, so no relative path works and libraries cannot be imported
            raise UsageError(f"the current folder: {system_reason(error)}: change into one that is there.") from None
        read_environment()
