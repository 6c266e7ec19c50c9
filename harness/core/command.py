"""The frame of every command: its flags by Typer, its help, one line for an error, the exit code."""

import math
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from configparser import ConfigParser
from itertools import pairwise
from textwrap import fill
from typing import TYPE_CHECKING, Any, NoReturn

import typer
from typer.completion import get_completion_inspect_parameters
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from harness.core.command_help import EXIT_CODES, SENTENCE, WIDEST_HELP, entry, list_entries
from harness.core.errors import DONE, LoadGenError, UsageError, ends_in_one_line
from harness.core.given_values import RENAMED_SETTINGS, as_flag, check_path, check_printable
from harness.core.moved_commands import raise_if_moved
from harness.core.plain_numbers import has_other_digits
from harness.core.software import module, program
from harness.core.startup import prepare

if TYPE_CHECKING:
    from typer._click.core import Command as AnyCommand
    from typer._click.core import Context
    from typer._click.formatting import HelpFormatter

HELP = {"help_option_names": ["-h", "--help"]}


HELP_ALL = "--help-all"
# Flags that had another name in some command, with the name that they now have in every command.
RENAMED_FLAGS = {as_flag(old): as_flag(new) for old, new in RENAMED_SETTINGS.items()} | dict.fromkeys(
    ("--samples", "--requests"), "--total-sample-count"
)
MANY_LINES = ("--engine-arg", "--serve")  # flags whose values may have line ends


def option(default: object, text: str, metavar: str | None = None, flag: str = "", **bounds: float) -> Any:
    """Return a flag of a command, to be written as the default of its parameter.

    `default` is `...` if the flag must be given. `text` is its help. `metavar` names the value in the help, and is None
    for a switch. `flag` is the flag's name if it differs from the parameter's. `bounds` are `min` and `max`.
    """
    return typer.Option(default, *filter(None, [flag]), metavar=metavar, help=text, **bounds)  # type: ignore[arg-type]


def argument(default: object, text: str, metavar: str) -> Any:
    return typer.Argument(default, metavar=metavar, help=text)


class Command(TyperCommand):
    """A function of ours as a command, which returns the exit code. What a user does wrong ends it with one line."""

    examples: Sequence[str] = ()
    panels: Sequence[str] = ()  # topics of the help, in order
    lists: Mapping[str, Mapping[str, str]] = {}  # lists below the flags, by title: a summary for each name
    rewrite: Callable[[Sequence[str]], Iterable[str]] = staticmethod(iter)
    prints: bool = True  # whether it only reads files and prints, so that nothing must be ended in order
    basic: Sequence[str] = ()  # the flags of -h, where --help-all has more
    operands: str = ""  # words that are rewritten to flags, as the help calls them

    @property
    def parameters(self) -> list[TyperArgument | TyperOption]:
        return [parameter for parameter in self.params if isinstance(parameter, TyperArgument | TyperOption)]

    @property
    def options_by_flag(self) -> dict[str, TyperOption]:
        """The options of this command by flag. An option with several flags is under each of them."""
        options = dict[str, TyperOption]()
        for parameter in self.params:
            if isinstance(parameter, TyperOption):
                options |= dict.fromkeys(parameter.opts, parameter)
        return options

    def parse_args(self, ctx: "Context", args: list[str]) -> list[str]:
        """Parse the words of the command line into parameters.

        Raises UsageError for a value that the command cannot use.
        """
        if HELP_ALL in args and self.basic:
            print(self.page(ctx, self.parameters, brief=False), end="")
            ctx.exit()
        words = [*self.rewrite([*self.rename_flags(args)])]
        self.check_values(words)
        left = super().parse_args(ctx, words)
        for parameter in self.parameters:
            value = ctx.params.get(str(parameter.name))
            if parameter.metavar != "URL":
                for item in value if isinstance(value, list) else [value]:
                    check_path(parameter.opts[0], item)
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(f"{parameter.opts[0]} takes a number; got {value:g}.")
        return left

    def rename_flags(self, words: Sequence[str]) -> Iterator[str]:
        """Yield the words of the command line with the current names of flags.

        A switch that is given with 1 is replaced by its flag alone. A switch that is given with 0 is replaced by its
        opposite flag, if it has one. Raises UsageError for any other value of a switch.
        """
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

    def page(self, ctx: "Context", parameters: Iterable[TyperArgument | TyperOption], brief: bool) -> str:
        """Return the text of the help with these flags, panel by panel.

        A `brief` help has only the first sentence on each flag.
        """
        width = min(WIDEST_HELP, shutil.get_terminal_size().columns)
        panels: dict[str, list[str]] = {name: [] for name in self.panels}
        for parameter in parameters:
            if "--help" not in parameter.opts and not parameter.hidden:  # whoever reads the help knows --help
                panels.setdefault(parameter.rich_help_panel or "Options", []).append(entry(parameter, width, brief))
        for title, summaries in self.lists.items():
            panels[title] = list_entries(summaries, width)
        panels["Examples"] = [f"  {example}" for example in self.examples]
        words = [str(parameter.metavar) for parameter in self.params if isinstance(parameter, TyperArgument)]
        usage = " ".join(filter(None, ["usage:", ctx.command_path, self.operands, *words, "[FLAGS]"]))
        blocks = [fill(usage, width), fill(self.help or "", width)]
        blocks += ["\n".join([f"{name}:", *entries]) for name, entries in panels.items() if entries]
        return "\n\n".join([*blocks, fill(EXIT_CODES, width, break_on_hyphens=False)]) + "\n"

    def check_values(self, words: Sequence[str]) -> None:
        """Raise UsageError if a flag is of an earlier version, lacks its value, or has a value that cannot be read.

        A flag that lacks its value would otherwise take the next flag as the value.
        """
        flags = self.options_by_flag
        for before, word in pairwise(["", *words]):
            if (name := word.partition("=")[0]) not in flags:
                raise_if_moved(name)
            flag_of_word = next((candidate for candidate in (name, before) if candidate in flags), "")
            check_printable(flag_of_word or f"{word!r:.60}", word.replace("\n", "") if name in MANY_LINES else word)
        for word, after in pairwise([*words, "-"]):  # if the last flag lacks its value, Typer says so
            flag, equals, value = word.partition("=")
            parameter = flags.get(flag)
            if not parameter or parameter.is_flag:
                continue
            if not equals and (name := after.partition("=")[0]) in flags:
                raise UsageError(f"{flag} needs a value; {name} is another flag.")
            given_value = value if equals else after
            if parameter.bare_type() in ("int", "float") and has_other_digits(given_value):
                raise UsageError(f"{flag} takes a number; got {given_value!r}.")
            is_path = parameter.bare_type() == "Path"
            if not given_value and (is_path or parameter.default is None):
                raise UsageError(f"{flag} needs a non-empty {'path' if is_path else 'value'}.")

    def invoke(self, ctx: "Context") -> object:
        """Run the command. An error that a user can cause ends the process with one line."""
        with ends_in_one_line():
            if not self.prints:
                return super().invoke(ctx)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # if `| head` closes the pipe, do not exit with 0
            try:
                return super().invoke(ctx)
            except LoadGenError as error:  # the user named the log, so the fault is in the input
                raise UsageError(str(error)) from None
            except UsageError as error:  # do not name a flag that this command lacks
                is_own = not error.flag or error.flag in self.options_by_flag
                raise error if is_own else UsageError(error.text) from None

    def format_help(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write the help that -h shows: the basic flags, or all flags if the command names no basic ones."""
        shown_parameters = self.parameters
        if self.basic:
            shown_parameters = [
                parameter for parameter in shown_parameters if parameter.hidden or {*self.basic} & {*parameter.opts}
            ]
        formatter.write(self.page(ctx, shown_parameters, brief=True))
        if self.basic:
            formatter.write(f"{HELP_ALL} shows {len(self.parameters) - len(shown_parameters)} more flags.\n")


class Group(TyperGroup):
    """Commands under one name."""

    def resolve_command(self, ctx: "Context", args: list[str]) -> "tuple[str | None, AnyCommand | None, list[str]]":
        raise_if_moved(args[0])
        return super().resolve_command(ctx, args)

    def about(self) -> Mapping[str, str]:
        return {name: command.help or "" for name, command in self.commands.items()}

    def format_help(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write a line for each command of the group that says what the command is for."""
        width, commands = min(WIDEST_HELP, shutil.get_terminal_size().columns), self.about()
        column = max(map(len, commands)) + 4
        formatter.write(f"usage: {ctx.command_path} COMMAND [-h] ...\n\n{fill(self.help or '', width)}\n\n")
        for name, text in commands.items():
            row = f"  {name}".ljust(column) + SENTENCE.split(text, 1)[0].rstrip(".")
            formatter.write(fill(row, width, subsequent_indent=" " * column) + "\n")


def make_command(function: Callable[..., object], about: str = "", **known: object) -> Command:
    """Return a function as a command with a flag for each parameter.

    The first paragraph of the help is `about`, or the function's docstring if `about` is empty. `known` sets attributes
    of Command.
    """
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=Command, help=about or function.__doc__, context_settings=HELP)(function)
    command = typer.main.get_command(app)
    assert isinstance(command, Command)
    vars(command).update(known)
    return command


def start(entry: Command | Group, name: str = "") -> NoReturn:
    """Run a command with the words of the command line, and end the process with the command's exit code."""
    prepare()
    get_completion_inspect_parameters()  # tells Typer what the shells are
    if {"-h", "--help"} & set(sys.argv[1:]):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end silently if `| head` closes the pipe
    if sys.argv[1:] == ["--version"]:
        print(program())
        raise SystemExit(DONE)
    with ends_in_one_line():
        try:
            called = name or " ".join(module()) or os.path.basename(sys.argv[0])
            code = entry.main(sys.argv[1:], prog_name=called, standalone_mode=False)
        except typer.TyperException as error:
            raise UsageError(typer_refusal(error)) from None
    raise SystemExit(code or DONE)


def typer_refusal(error: typer.TyperException) -> str:
    """Return Typer's error message as one line of our own."""
    text = " ".join(error.format_message().split()).replace("Value error, ", "")
    text = text.partition(", unable to parse")[0].rstrip(".")
    text = text[:1].lower() + text[1:]
    if not text.endswith("?"):
        text += ";"
    context = getattr(error, "ctx", None)
    command = f"{context.command_path} " if context else ""
    return f"{text} {command}-h lists what it takes."


def take_several(*flags: str) -> Callable[[Sequence[str]], Iterator[str]]:
    """Return a function for `rewrite` that lets these flags take several words, as in `--compare RUN RUN`.

    A flag takes all words up to the next flag. Typer takes one value for each flag, so the function repeats the flag
    for each word. If a flag is given twice, only the words of the last one count.
    """

    def rewritten(words: Sequence[str]) -> Iterator[str]:
        owners = list[tuple[str, str]]()  # each word with the flag that it belongs to
        flag = ""
        for word, after in pairwise([*words, "-"]):
            if word.startswith("-"):
                flag = word if word in flags and not after.startswith("-") else ""
                owners = [pair for pair in owners if not flag or pair[0] != flag]
            if not flag or word != flag:
                owners.append((flag, word))
        for flag, word in owners:
            yield f"{flag}={word}" if flag else word

    return rewritten
