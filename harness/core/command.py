"""The frame of every command: its flags by Typer, its help, one line for an error, the exit code."""

import codecs
import locale
import math
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from configparser import ConfigParser
from itertools import pairwise
from textwrap import fill
from typing import Any, NoReturn

import typer
from typer.completion import get_completion_inspect_parameters
from typer.core import TyperCommand, TyperGroup

from harness.core.errors import DONE, LoadGenError, UsageError, ends_in_one_line, why
from harness.core.files import MOVED, RENAMED, as_flag, check_path, check_printable, read_given
from harness.core.interrupts import interruptible
from harness.core.reading import CHECKOUT, MIB, names_in
from harness.core.system import module, program

# The help of a command: a line or two a flag, topic by topic, what is needed first, first; examples and exit codes.
FLAG_COLUMNS, WIDEST_HELP = 30, 100  # columns of the flags, and of all at most
EXIT_CODES = (
    "Exit codes: 0 done, 1 not accepted, 2 wrong usage or input, 3 the engine or LoadGen failed, 130 interrupted."
)
SENTENCE = re.compile(r"(?<=[a-z)0-9])\.\s")


def entry(parameter: Any, width: int, brief: bool) -> str:
    """A flag and what it is for, beside it or, where it is long, below."""
    is_option, said = parameter.param_type_name == "option", parameter.help or ""
    said = SENTENCE.split(said, 1)[0].rstrip(".") if brief else said
    flags = ", ".join(sorted(parameter.opts, key=len)) if is_option else ""
    name = f"  {' '.join(filter(None, [flags, parameter.metavar]))}"
    if is_option and parameter.required:
        said += " (required)"
    if default := shown_default(parameter):
        said += f" [{default}]"
    indent = " " * FLAG_COLUMNS
    is_long = len(name) >= FLAG_COLUMNS - 1
    text = fill(
        said,
        width,
        initial_indent=indent if is_long else name.ljust(FLAG_COLUMNS),
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    above = fill(name.replace("|", "| "), width, subsequent_indent=indent).replace("| ", "|")  # choices may be broken
    return f"{above}\n{text}" if is_long else text


def shown_default(parameter: Any) -> str:
    """The default where it says something: not of a switch that is off, a list that is empty, or None."""
    default = parameter.default
    if callable(default) or default is False or default in (None, [], ()):
        return ""
    return "1" if default is True else str(default)


# What every command begins with: standard streams, UTF-8, the token by both names.
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


def restart_in_utf8() -> None:
    """Starts this command over in Python's UTF-8 mode where the locale has another encoding.

    Data, reports and the sources that torch reads are in UTF-8 on every machine.
    """
    if codecs.lookup(locale.getpreferredencoding(False)).name != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


FOLDERS = names_in("HF_HOME HF_HUB_CACHE HF_DATASETS_CACHE XDG_CACHE_HOME VLLM_CACHE_ROOT TORCH_HOME NLTK_DATA TMPDIR")


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
    for name in FOLDERS:
        check_path(name, os.environ.get(name))


def prepare() -> None:
    """What every command begins with."""
    interruptible()
    open_streams()
    restart_in_utf8()
    with ends_in_one_line():
        try:
            os.getcwd()
        except OSError as error:  # deleted: no relative path leads anywhere, nor can libraries be imported
            raise UsageError(f"the current folder: {why(error)}: change into one that is there.") from None
        read_environment()


HELP = {"help_option_names": ["-h", "--help"]}


HELP_ALL = "--help-all"
# Names that flags had in some command, and the one that they have in all.
RENAMED_FLAGS = {as_flag(old): as_flag(new) for old, new in RENAMED.items()} | dict.fromkeys(
    ("--samples", "--requests"), "--total-sample-count"
)
MANY_LINES = ("--engine-arg", "--serve")  # flags whose values may have line ends


def option(default: Any, text: str, metavar: str | None = None, flag: str = "", **bounds: float) -> Any:
    """A flag of a command, as its parameter's default, `...` where it must be given: its help; what it takes, nothing
    for a switch; its name where that is not the parameter's; `min` and `max`."""
    return typer.Option(default, *filter(None, [flag]), metavar=metavar, help=text, **bounds)  # type: ignore[arg-type]


def argument(default: Any, text: str, metavar: str) -> Any:
    return typer.Argument(default, metavar=metavar, help=text)


class Command(TyperCommand):
    """A function of ours as a command, which returns the exit code. What a user does wrong ends it with one line."""

    examples: Sequence[str] = ()
    panels: Sequence[str] = ()  # of the help, in order
    rewrite: Callable[[Sequence[str]], Iterable[str]] = staticmethod(iter)
    prints: bool = True  # it reads files and prints; nothing is begun that must be ended in order
    basic: Sequence[str] = ()  # the flags of -h, where --help-all has more
    operands: str = ""  # words that are rewritten to flags, as the help calls them

    @property
    def options_by_flag(self) -> dict[str, Any]:
        """The options by each of their names."""
        return {name: each for each in self.params if each.param_type_name == "option" for name in each.opts}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if HELP_ALL in args and self.basic:
            print(self.page(ctx, self.params, brief=False), end="")
            ctx.exit()
        words = [*self.rewrite([*self.rename_flags(args)])]
        self.check_values(words)
        left = super().parse_args(ctx, words)
        for parameter in self.params:
            value = ctx.params.get(parameter.name)
            for one in value if isinstance(value, list) and parameter.metavar != "URL" else [value]:
                check_path(parameter.opts[0], one)
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(f"{parameter.opts[0]} takes a number; got {value:g}.")
        return left

    def rename_flags(self, words: Sequence[str]) -> Iterator[str]:
        """The words with today's names of flags, and a switch alone for its 1, or its opposite for its 0."""
        flags, left = self.options_by_flag, iter(pairwise([*words, ""]))
        for word, after in left:
            name, equals, value = word.partition("=")
            if name not in flags and RENAMED_FLAGS.get(name) in flags:
                name = RENAMED_FLAGS[name]
            if name in flags and flags[name].is_flag and (equals or after in ("0", "1")):
                if not equals:
                    value, _ = after, next(left, None)
                if (is_on := ConfigParser.BOOLEAN_STATES.get(value.lower())) is None:
                    raise UsageError(f"{name} takes 0 or 1; got {value!r}.")
                yield from [name] if is_on else flags[name].secondary_opts
            else:
                yield f"{name}{equals}{value}"

    def page(self, ctx: Any, parameters: Iterable[Any], brief: bool) -> str:
        """The help with these flags, panel by panel. `brief`: of what each is for the first sentence."""
        width = min(WIDEST_HELP, shutil.get_terminal_size().columns)
        panels: dict[str, list[str]] = {name: [] for name in self.panels}
        for parameter in parameters:
            if "--help" not in parameter.opts and not parameter.hidden:  # who reads this knows --help
                panels.setdefault(parameter.rich_help_panel or "Options", []).append(entry(parameter, width, brief))
        panels["Examples"] = [f"  {example}" for example in self.examples]
        words = [str(parameter.metavar) for parameter in self.params if parameter.param_type_name == "argument"]
        usage = " ".join(filter(None, ["usage:", ctx.command_path, self.operands, *words, "[FLAGS]"]))
        blocks = [fill(usage, width), fill(self.help or "", width)]
        blocks += ["\n".join([f"{name}:", *found]) for name, found in panels.items() if found]
        return "\n\n".join([*blocks, fill(EXIT_CODES, width, break_on_hyphens=False)]) + "\n"

    def check_values(self, words: Sequence[str]) -> None:
        """Raises UsageError for a flag of an earlier version, or without its value, where the next flag would be taken
        for it."""
        flags = self.options_by_flag
        for before, word in pairwise(["", *words]):
            if (name := word.partition("=")[0]) not in flags:
                raise_if_moved(name)
            shown = name if name in flags else before if before in flags else f"{word!r:.60}"
            check_printable(shown, word.replace("\n", "") if name in MANY_LINES else word)
        for word, after in pairwise([*words, "-"]):  # at the end Typer says what is missing
            flag, equals, value = word.partition("=")
            parameter = flags.get(flag)
            if not parameter or parameter.is_flag:
                continue
            if not equals and (name := after.partition("=")[0]) in flags:
                raise UsageError(f"{flag} needs a value; {name} is another flag.")
            is_path = parameter.bare_type() == "Path"
            if not (value if equals else after) and (is_path or parameter.default is None):
                raise UsageError(f"{flag} needs a non-empty {'path' if is_path else 'value'}.")

    def invoke(self, ctx: Any) -> Any:
        with ends_in_one_line():
            if not self.prints:
                return super().invoke(ctx)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as in `... | head`: no exit code of 0 for what was not seen
            try:
                return super().invoke(ctx)
            except LoadGenError as error:  # a log that the user named
                raise UsageError(str(error)) from None
            except UsageError as error:  # of a word that is a flag elsewhere
                flag, _, rest = str(error).partition(" ")
                is_own = not flag.startswith("--") or flag in self.options_by_flag
                raise error if is_own else UsageError(rest) from None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        shown: list[Any] = self.params
        if self.basic:
            shown = [parameter for parameter in shown if parameter.hidden or {*self.basic} & {*parameter.opts}]
        formatter.write(self.page(ctx, shown, brief=True))
        if self.basic:
            formatter.write(f"{HELP_ALL} shows {len(self.params) - len(shown)} more flags.\n")


class Group(TyperGroup):
    """Commands under one name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        raise_if_moved(args[0])
        return super().resolve_command(ctx, args)

    def about(self) -> Mapping[str, str]:
        return {name: command.help or "" for name, command in self.commands.items()}

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """What each command is for."""
        width, commands = min(WIDEST_HELP, shutil.get_terminal_size().columns), self.about()
        column = max(map(len, commands)) + 4
        formatter.write(f"usage: {ctx.command_path} COMMAND [-h] ...\n\n{fill(self.help or '', width)}\n\n")
        for name, text in commands.items():
            row = f"  {name}".ljust(column) + SENTENCE.split(text, 1)[0].rstrip(".")
            formatter.write(fill(row, width, subsequent_indent=" " * column) + "\n")


def raise_if_moved(word: str) -> None:
    """Raises UsageError for a command or flag of an earlier version, with what serves in its place."""
    if word in MOVED:
        raise UsageError(f"{word} {MOVED[word]}.")


def make_command(function: Callable[..., object], about: str = "", **known: Any) -> Command:
    """A function as a command: a flag for each parameter, its docstring or `about` as the help's first paragraph, and
    what else is `known` of it, by the names of Command."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=Command, help=about or function.__doc__, context_settings=HELP)(function)
    made: Any = typer.main.get_command(app)
    vars(made).update(known)
    return made  # type: ignore[no-any-return]


def start(entry: Command | Group, name: str = "") -> NoReturn:
    """Runs a command with the words of the command line; ends the process with its exit code."""
    prepare()
    get_completion_inspect_parameters()  # which tells Typer what the shells are
    if {"-h", "--help"} & set(sys.argv[1:]):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as in `-h | head`
    if sys.argv[1:] == ["--version"]:
        print(program())
        raise SystemExit(DONE)
    with ends_in_one_line():
        try:
            called = name or " ".join(module()) or os.path.basename(sys.argv[0])
            code = entry.main(sys.argv[1:], prog_name=called, standalone_mode=False)
        except typer.TyperException as error:
            raise UsageError(refusal(error)) from None
    raise SystemExit(code or DONE)


def refusal(error: typer.TyperException) -> str:
    """What Typer refuses, as one line of ours."""
    text = (
        " ".join(error.format_message().split())
        .replace("Value error, ", "")
        .partition(", unable to parse")[0]
        .rstrip(".")
    )
    place = getattr(error, "ctx", None)
    where = f"{place.command_path} -h lists what it takes" if place else "-h lists what it takes"
    return f"{text[:1].lower()}{text[1:]}{'' if text.endswith('?') else ';'} {where}."


def take_several(*flags: str) -> Callable[[Sequence[str]], Iterator[str]]:
    """For `rewrite`: flags that take all words up to the next flag, as in `--compare RUN RUN`; Typer takes one each.

    Of a flag that is given twice, the last one counts.
    """

    def rewritten(words: Sequence[str]) -> Iterator[str]:
        found = list[tuple[str, str]]()  # what a word belongs to, if it is one of the flags
        flag = ""
        for word, after in pairwise([*words, "-"]):
            if word.startswith("-"):
                flag = word if word in flags and not after.startswith("-") else ""
                found = [pair for pair in found if not flag or pair[0] != flag]
            if not flag or word != flag:
                found.append((flag, word))
        return (f"{flag}={word}" if flag else word for flag, word in found)

    return rewritten
