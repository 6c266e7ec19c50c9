"""The frame of every command: its flags by Typer, its help, one line for an error, the exit code."""

import math
import os
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

from harness.core.command_help import exit_codes_text, first_sentence, flag_entry, help_width, list_entries
from harness.core.errors import DONE, LoadGenError, UsageError, one_line_errors
from harness.core.formatting import joined_text
from harness.core.given_values import RENAMED_SETTINGS, check_path, check_printable, flag_name
from harness.core.moved_commands import raise_if_moved
from harness.core.plain_numbers import has_other_digits
from harness.core.software import module_words, program_text, typed_here
from harness.core.startup import prepare
from harness.core.value_mistakes import refusal_text

if TYPE_CHECKING:
    from typer._click.core import Command as AnyCommand
    from typer._click.core import Context
    from typer._click.formatting import HelpFormatter

HELP = {"help_option_names": ["-h", "--help"]}
HELP_ALL = "--help-all"
# Flags that had another name in some command, with the name that they now have in every command.
RENAMED_FLAGS = {flag_name(old): flag_name(new) for old, new in RENAMED_SETTINGS.items()} | dict.fromkeys(
    ("--samples", "--requests"), "--total-sample-count"
)
MULTILINE_FLAGS = ("--engine-arg", "--serve")  # flags whose values may have line ends


def option(default: object, text: str, metavar: str | None = None, flag: str = "", **bounds: float) -> Any:
    """Return a flag of a command, to be written as the default of its parameter.

    `default` is `...` if the flag must be given. `text` is its help. `metavar` names the value in the help, and is None
    for a switch. `flag` is the flag's name if it differs from the parameter's. `bounds` are `min` and `max`.
    """
    return typer.Option(default, *filter(None, [flag]), metavar=metavar, help=text, **bounds)  # type: ignore[arg-type]


def argument(default: object, text: str, metavar: str) -> Any:
    """Return an operand of a command, to be written as the default of its parameter. `text` is its help."""
    return typer.Argument(default, metavar=metavar, help=text)


class Command(TyperCommand):
    """A function of ours as a command, which returns the exit code. What a user does wrong ends it with one line."""

    examples: Sequence[str] = ()
    panels: Sequence[str] = ()  # topics of the help, in order
    lists: Mapping[str, Mapping[str, str]] = {}  # lists below the flags, by title: a summary for each name
    rewrite: Callable[[Sequence[str]], Iterable[str]] = staticmethod(iter)  # changes the words before Typer reads them
    is_read_only: bool = True  # the command only reads files and prints, so it may end at any moment
    basic: Sequence[str] = ()  # the flags that -h shows if only --help-all shows every flag
    operands: str = ""  # the help's name for words that `rewrite` turns into flags
    not_accepted: str = ""  # the meaning of exit code 1; empty if the command never ends with it
    bad_input: str = "wrong usage or input"  # the meaning of exit code 2

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
        """Parse the words of the command line into parameters, and return the words that are left.

        With --help-all, prints the whole help and ends the command. Raises UsageError for a value that the command
        cannot use.
        """
        has_brief_help = bool(self.basic)  # Without one, -h shows all flags, and there is no --help-all.
        if HELP_ALL in args and has_brief_help:
            print(self.page(ctx, self.parameters, brief=False), end="")
            ctx.exit()
        renamed_words = list(self.rename_flags(args))
        words = list(self.rewrite(renamed_words))
        self.check_values(words)
        remaining_words = super().parse_args(ctx, words)
        for parameter in self.parameters:
            value = ctx.params.get(str(parameter.name))
            check_parameter(parameter, value)
        return remaining_words

    def rename_flags(self, words: Sequence[str]) -> Iterator[str]:
        """Yield the words of the command line with the current names of flags, and switches without values.

        Raises UsageError for a value of a switch that says neither yes nor no.
        """
        flags = self.options_by_flag
        pairs = iter(pairwise([*words, ""]))  # each word with the word after it
        for word, after in pairs:
            flag, equals, value = word.partition("=")
            if flag not in flags and RENAMED_FLAGS.get(flag) in flags:
                flag = RENAMED_FLAGS[flag]
            is_switch = flag in flags and flags[flag].is_flag
            # Typer accepts no value of a switch, such as `--json 1` or `--json=0`.
            if is_switch and equals:
                yield from switch_words(flags[flag], flag, value)
            elif is_switch and after in ("0", "1"):
                next(pairs, None)  # skip the value, which is the next word
                yield from switch_words(flags[flag], flag, after)
            else:
                yield f"{flag}{equals}{value}"

    def page(self, ctx: "Context", parameters: Iterable[TyperArgument | TyperOption], brief: bool) -> str:
        """Return the text of the help: usage, description, these flags panel by panel, lists, examples, exit codes.

        Hidden flags are left out. A `brief` help has only the first sentence on each flag.
        """
        width = help_width()
        panels: dict[str, list[str]] = {name: [] for name in self.panels}
        for parameter in parameters:
            if "--help" not in parameter.opts and not parameter.hidden:  # whoever reads the help knows --help
                panel = panels.setdefault(parameter.rich_help_panel or "Options", [])
                panel.append(flag_entry(parameter, width, brief))
        for title, summaries in self.lists.items():
            panels[title] = list_entries(summaries, width)
        panels["Examples"] = [f"  {typed_here(example)}" for example in self.examples]
        blocks = [fill(self.usage(ctx.command_path), width), fill(self.help or "", width)]
        for name, entries in panels.items():
            if entries:
                blocks.append("\n".join([f"{name}:", *entries]))
        blocks.append(fill(exit_codes_text(self.not_accepted, self.bad_input), width, break_on_hyphens=False))
        return "\n\n".join(blocks) + "\n"

    def usage(self, command_path: str) -> str:
        """Return the first line of the help: the command, the operands that Typer does not know, and those it does."""
        arguments = [str(parameter.metavar) for parameter in self.params if isinstance(parameter, TyperArgument)]
        return joined_text(" ", "usage:", command_path, self.operands, *arguments, "[FLAGS]")

    def check_values(self, words: Sequence[str]) -> None:
        """Raise UsageError if a flag is of an earlier version, lacks its value, or has a value that cannot be read.

        Raises it also if a word has control characters, except for line ends in the values of MULTILINE_FLAGS.
        """
        flags = self.options_by_flag
        for before, word in pairwise(["", *words]):
            name = word.partition("=")[0]
            if name not in flags:
                raise_if_moved(name)  # raises only for a flag of an earlier version
            flag = shown_flag(word, before, flags)  # The word is a flag, or the value of the flag before it.
            text = word
            if flag in MULTILINE_FLAGS:
                text = word.replace("\n", "")
            check_printable(flag, text)
        for flag, value in self.flags_with_values(words):  # raises for a flag that lacks its value
            check_flag_value(flag, flags[flag], value)

    def flags_with_values(self, words: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield each flag of the command line that takes a value, with this value.

        Raises UsageError if another flag follows in place of the value, since Typer would take it as the value.
        """
        flags = self.options_by_flag
        # "-" stands after the last word. It is no flag, so a last flag without a value is left for Typer to report.
        for word, after in pairwise([*words, "-"]):
            flag, equals, value = word.partition("=")
            takes_value = flag in flags and not flags[flag].is_flag
            if not takes_value:
                continue
            if equals:
                yield flag, value
                continue
            next_flag = after.partition("=")[0]
            if next_flag in flags:
                raise UsageError(f"{flag} needs a value; {next_flag} is another flag.")
            yield flag, after

    def invoke(self, ctx: "Context") -> object:
        """Run the command. An error that a user can cause ends the process with one line."""
        with one_line_errors():
            if not self.is_read_only:
                return super().invoke(ctx)
            # If `| head` closes the pipe, the signal ends this process. Otherwise Python would raise an error, and the
            # command would end with exit code 0.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            try:
                return super().invoke(ctx)
            except LoadGenError as error:  # the user named the log, so the fault is in the input
                raise UsageError(str(error)) from None
            except UsageError as error:
                # The message must not name a flag that the command does not have.
                if error.flag and error.flag not in self.options_by_flag:
                    raise UsageError(error.text) from None
                raise

    def format_help(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write the help that -h shows: the basic flags, or all flags if the command names no basic ones."""
        if not self.basic:
            formatter.write(self.page(ctx, self.parameters, brief=True))
            return
        visible_parameters = [parameter for parameter in self.parameters if not parameter.hidden]
        basic_parameters = [parameter for parameter in visible_parameters if self.is_basic(parameter)]
        formatter.write(self.page(ctx, basic_parameters, brief=True))
        formatter.write(f"{HELP_ALL} shows {len(visible_parameters) - len(basic_parameters)} more flags.\n")

    def is_basic(self, parameter: TyperArgument | TyperOption) -> bool:
        """Return whether -h shows a flag of this parameter."""
        return not set(self.basic).isdisjoint(parameter.opts)


def switch_words(switch: TyperOption, name: str, value: str) -> list[str]:
    """Return the words that Typer takes for a switch that was given with a value.

    Raises UsageError for a value that says neither yes nor no.
    """
    is_on = ConfigParser.BOOLEAN_STATES.get(value.lower())
    if is_on is None:
        raise UsageError(f"{name} takes 0 or 1; got {value!r}.")
    return [name] if is_on else switch.secondary_opts  # the opposite switch, or no word if there is none


def check_parameter(parameter: TyperArgument | TyperOption, value: object) -> None:
    """Raise UsageError if a parameter's value, or an item of it, is a web address, unless the flag takes a URL.

    Raises it also for a number that is not finite.
    """
    name = parameter.opts[0]
    if parameter.metavar != "URL":
        items = value if isinstance(value, list) else [value]
        for item in items:
            check_path(name, item)
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{name} takes a number; got {value:g}.")


def check_flag_value(flag: str, parameter: TyperOption, value: str) -> None:
    """Raise UsageError for a number with other digits than ASCII or with an underscore, which Python would accept.

    Raises it also for an empty value, unless the flag has a default and takes no path: --reference "" is none.
    """
    kind = parameter.bare_type()
    if kind in ("int", "float") and has_other_digits(value):
        raise UsageError(f"{flag} takes a number; got {value!r}.")
    is_empty = value == ""
    if is_empty and kind == "Path":
        raise UsageError(f"{flag} needs a non-empty path.")
    if is_empty and parameter.default is None:
        raise UsageError(f"{flag} needs a non-empty value.")


def shown_flag(word: str, before: str, flags: Mapping[str, TyperOption]) -> str:
    """Return the flag to which a word of the command line belongs, as its name or its value, for an error message.

    `before` is the word before it. If the word belongs to no flag, return the beginning of the word.
    """
    for candidate in (word.partition("=")[0], before):
        if candidate in flags:
            return candidate
    return f"{word!r:.60}"


class Group(TyperGroup):
    """Commands under one name."""

    def resolve_command(self, ctx: "Context", args: list[str]) -> "tuple[str | None, AnyCommand | None, list[str]]":
        """Return what Typer finds for the first word. Raises UsageError if that was a command of an earlier version."""
        raise_if_moved(args[0])
        return super().resolve_command(ctx, args)

    def about(self) -> Mapping[str, str]:
        """Return the help of each command of the group by the command's name."""
        return {name: command.help or "" for name, command in self.commands.items()}

    def format_help(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write how to call a command of the group, the group's description, and a line about each command."""
        width = help_width()
        commands = self.about()
        column = max(map(len, commands)) + 4
        formatter.write(f"usage: {ctx.command_path} COMMAND [-h] ...\n\n{fill(self.help or '', width)}\n\n")
        for name, text in commands.items():
            row = f"  {name}".ljust(column) + first_sentence(text)
            formatter.write(fill(row, width, subsequent_indent=" " * column) + "\n")


def make_command(function: Callable[..., object], about: str = "", **attributes: object) -> Command:
    """Return a function as a command with a flag for each parameter.

    The first paragraph of the help is `about`, or the function's docstring if `about` is empty. `attributes` are set on
    the Command, such as `examples`.
    """
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=Command, help=about or function.__doc__, context_settings=HELP)(function)
    command = typer.main.get_command(app)
    assert isinstance(command, Command)
    vars(command).update(attributes)
    return command


def start(entry: Command | Group, name: str = "") -> NoReturn:
    """Run a command with the words of the command line, and end the process with the command's exit code.

    `name` is the command's name in its help and errors. If `name` is empty, the command is named as it was called.
    """
    prepare()
    get_completion_inspect_parameters()  # makes Typer register the shells for which it can complete flags
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end silently if `| head` closes the pipe
    # At most the name of a sub-command may come before the flag.
    is_version_asked = arguments[-1:] == ["--version"] and len(arguments) <= 2
    if is_version_asked:
        print(program_text())
        raise SystemExit(DONE)
    with one_line_errors():
        try:
            shown_name = name or " ".join(module_words()) or os.path.basename(sys.argv[0])
            code = entry.main(arguments, prog_name=shown_name, standalone_mode=False)
        except typer.TyperException as error:
            raise UsageError(typer_refusal(error)) from None
    raise SystemExit(code or DONE)


def typer_refusal(error: typer.TyperException) -> str:
    """Return Typer's error message as one line that ends with how to list the flags."""
    text = pydantic_refusal(error)
    if not text:
        text = " ".join(error.format_message().split()).rstrip(".")
        text = text[:1].lower() + text[1:]
    if not text.endswith("?"):  # A "did you mean ...?" needs no semicolon.
        text += ";"
    context = getattr(error, "ctx", None)
    if not context:
        return f"{text} -h lists what it takes."
    return f"{text} {context.command_path} -h lists what it takes."


def pydantic_refusal(error: typer.TyperException) -> str:
    """Return what pydantic found wrong with the value of a flag, in our words. Empty if the error is Typer's own."""
    from pydantic import ValidationError

    parameter = getattr(error, "param", None)
    if parameter is None or not isinstance(error.__cause__, ValidationError):
        return ""
    mistakes = error.__cause__.errors(include_url=False)
    return refusal_text(parameter.opts[0], mistakes[0])


def take_several(*flags: str) -> Callable[[Sequence[str]], Iterator[str]]:
    """Return a function for `Command.rewrite` that lets these flags take several words, as in `--compare RUN RUN`.

    Typer takes one value for each flag, so the function makes `--compare=RUN --compare=RUN` of it.
    """

    def words_with_flags(words: Sequence[str]) -> Iterator[str]:
        """Yield the words of a command line, with FLAG=WORD for each word between one of `flags` and the next flag.

        If a flag is given twice, only the words after its last occurrence count. A flag without a word is left for
        Typer to report.
        """
        pairs = list[tuple[str, str]]()  # a flag and a word after it; the flag is "" for any other word
        open_flag = ""  # the one of `flags` whose words are being read; "" if none
        for word, after in pairwise([*words, "-"]):  # The "-" stands for a flag after the last word.
            if word.startswith("-"):  # Any flag ends the words of the one before.
                open_flag = ""
            is_flag_next = after.startswith("-")
            if word in flags and not is_flag_next:
                open_flag = word
                pairs = [pair for pair in pairs if pair[0] != open_flag]  # without an earlier occurrence of the flag
                continue
            pairs.append((open_flag, word))
        for flag, word in pairs:
            yield f"{flag}={word}" if flag else word

    return words_with_flags
