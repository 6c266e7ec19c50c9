"""The frame of the commands: words that a flag takes, refusals of one line, help, exit codes."""

import os
import signal
import sys
from typing import Annotated

import pytest
import typer

from harness import __main__
from harness.commands import COMMANDS
from harness.core import software
from harness.core.command import HELP, Group, make_command, option, start, take_several
from harness.core.errors import BAD_INPUT, NOT_ACCEPTED, EngineError, UsageError
from tests.conftest import called, tells


def shown(
    runs: Annotated[list[str] | None, typer.Option(metavar="RUN ...", help="Runs. In full.")] = None,
    count: Annotated[int, typer.Option(metavar="N", help="How many.")] = 3,
) -> int:
    """Show what was given."""
    print(runs, count)
    return NOT_ACCEPTED if count == 0 else 0


def failing() -> int:
    """Fail as a command does."""
    raise EngineError("the engine is gone.")


def broken() -> int:
    """Fail as only a bug does."""
    raise KeyError("a bug")


COMMAND = make_command(shown, rewrite=take_several("--runs"))
BOTH = {"shown": COMMAND, "failing": make_command(failing), "broken": make_command(broken)}
GROUP = Group(help="Both.", commands=BOTH, context_settings=HELP)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ((), "None 3"),
        (("--runs", "a"), "['a'] 3"),
        (("--runs", "a", "b", "--count", "1"), "['a', 'b'] 1"),
        (("--count", "1", "--runs", "a", "--runs", "b", "c"), "['b', 'c'] 1"),
        (("--runs=a", "--count=2"), "['a'] 2"),
    ],
)
def test_a_flag_takes_all_words_up_to_the_next(words: tuple[str, ...], given: str) -> None:
    assert called(lambda: start(COMMAND, "shown"), "shown", *words).stdout == f"{given}\n"


def engine_args(argument: Annotated[str, typer.Option("--engine-arg", metavar="NAME=JSON")] = "") -> None:
    """Show an argument of the engine."""
    print(argument.split("\n"))


@pytest.mark.parametrize("words", [("--engine-arg", "a=[1,\n2]"), ("--engine-arg=a=[1,\n2]",)])
def test_json_of_several_lines_may_follow_its_flag_or_an_equals_sign(words: tuple[str, ...]) -> None:
    assert called(lambda: start(make_command(engine_args), "x"), "x", *words).stdout == "['a=[1,', '2]']\n"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--bogus",), ["--bogus", "shown -h"]),
        (("--count", "x"), ["--count takes a whole number", "shown -h"]),
        (("--runs",), ["--runs", "argument"]),
        (("--runs", "--count", "1"), ["--runs needs a value", "--count"]),
        (("--count", "--runs", "a"), ["--count needs a value", "--runs"]),
        (("--count", "--runs=a"), ["--count needs a value", "--runs"]),
        (("--cuont", "1"), ["--cuont", "--count"]),
        (("word",), ["word", "shown -h"]),
    ],
)
def test_what_is_refused_is_one_line(words: tuple[str, ...], parts: list[str]) -> None:
    done = called(lambda: start(COMMAND, "shown"), "shown", *words)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (BAD_INPUT, "", 1)
    assert tells(done.stderr, "error: ", *parts)


def test_exit_codes() -> None:
    assert called(lambda: start(COMMAND, "shown"), "shown", "--count", "0").returncode == NOT_ACCEPTED
    failed = called(lambda: start(GROUP, "both"), "both", "failing")
    assert (failed.returncode, failed.stderr) == (EngineError.exit_code, "error: the engine is gone.\n")
    with pytest.raises(KeyError, match="a bug"):  # a mistake of ours keeps its stack
        called(lambda: start(GROUP, "both"), "both", "broken")


@pytest.mark.parametrize(("words", "parts"), [((), ["command"]), (("shwon",), ["shwon", "shown"])])
def test_a_group_names_what_it_has(words: tuple[str, ...], parts: list[str]) -> None:
    done = called(lambda: start(GROUP, "both"), "both", *words)
    assert (done.returncode, done.stderr.count("\n")) == (BAD_INPUT, 1)
    assert tells(done.stderr, "error: ", *parts, "both -h")


def test_help_has_a_flag_and_its_first_sentence() -> None:
    page = called(lambda: start(COMMAND, "shown"), "shown", "-h").stdout
    assert tells(page, "  --runs RUN ...", "Runs\n".strip()) and "In full" not in page
    assert tells(page, "  --count N", "How many [3]") and page.startswith("usage: shown [FLAGS]\n")


@pytest.mark.parametrize(
    ("name", "meaning"), [("run", "1 gate failed"), ("report", "1 a --fail-if"), ("sweep", "1 --bisect"), ("runs", "")]
)
def test_the_help_has_the_exit_codes_that_the_command_can_have(name: str, meaning: str) -> None:
    page = called(__main__.main, "llama31-mlperf", name, "-h").stdout
    codes = " ".join(page[page.index("Exit codes: ") :].split())
    assert meaning in codes and ("; 1 " in codes) == bool(meaning)


def test_the_help_of_compare_has_no_flag_that_a_server_cannot_obey() -> None:
    page = called(__main__.main, "llama31-mlperf", "compare", "-h").stdout
    assert tells(page, "--concurrency ") and "--tensor-parallel-size" not in page and "--endpoint" not in page


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_its_help_in_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    entry = called(__main__.main, "llama31-mlperf", name, "-h")
    assert entry.returncode == 0 and entry.stdout.startswith("usage: ")
    long = [line for line in entry.stdout.splitlines() if len(line) > 80 and "http" not in line]
    assert [line for line in long if not line.startswith("  python ")] == []


def test_a_command_that_only_prints_ends_by_sigpipe() -> None:
    before = signal.getsignal(signal.SIGPIPE)
    try:
        seen: list[object] = []

        def printing() -> int:
            """What a reader that goes away does to it."""
            seen.append(signal.getsignal(signal.SIGPIPE))
            raise FileNotFoundError(2, os.strerror(2), "summary.json")

        done = called(lambda: start(make_command(printing)), "printing")
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert seen == [signal.SIG_DFL]
    assert (done.returncode, done.stderr) == (UsageError.exit_code, f"error: summary.json: {os.strerror(2)}.\n")


def test_switches_take_0_or_1_and_old_names_are_taken() -> None:
    seen: dict[str, object] = {}

    def measure(
        dry_run: bool = option(False, "Nothing runs."),
        total_sample_count: int = option(1, "Samples.", "N"),
    ) -> int:
        seen.update(dry_run=dry_run, samples=total_sample_count)
        return 0

    command = make_command(measure, "Measures.")
    for words, dry, samples in (
        (["--dry-run"], True, 1),
        (["--dry-run", "1"], True, 1),
        (["--dry-run=0"], False, 1),
        (["--dry-run", "0", "--samples", "7"], False, 7),
        (["--requests=8", "--dry-run=1"], True, 8),
    ):
        command.main([*words], standalone_mode=False)
        assert seen == {"dry_run": dry, "samples": samples}


@pytest.mark.parametrize(
    ("example", "installed"),
    [
        ("python run.py --model demo", "llama31-mlperf run --model demo"),
        ("python report.py latest", "llama31-mlperf report latest"),
        ("python -m harness doctor --json", "llama31-mlperf doctor --json"),
    ],
)
def test_examples_are_shown_as_they_are_typed(example: str, installed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert software.typed_here(example) == example
    monkeypatch.setattr(sys, "argv", ["/env/bin/llama31-mlperf", "run", "-h"])
    assert software.typed_here(example) == installed
