"""Servers under the same requests, or finished runs side by side: `python -m harness compare --help` has the flags."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from harness.common.coerce import as_flag
from harness.common.errors import DONE, UsageError
from harness.config import endpoint
from harness.config.cli import config_command
from harness.config.flags import MOST_S
from harness.config.run import RunConfig
from harness.terminal.command import argument, make_command, option

ABOUT = """Servers under the same requests, in rounds A B B A, until their difference is known; or finished runs, as
`report.py --compare` has them. Further flags, such as --model, --concurrency or --workload, are those of run.py.
Settings of an engine in this process are compared by a sweep: `python sweep.py FILE --repeat 3`."""
EXAMPLES = (
    "python -m harness compare http://a:8000/v1 http://b:8000/v1 --concurrency 16",
    "python -m harness compare http://a:8000/v1 http://b:8000/v1 --fail-if 'output_tokens_per_s<-3%'",
    "python -m harness compare before after",
)
# What run.py's flags are where none is given: a load that most servers take, and tests of some seconds.
CONCURRENCY, TEST_S, SAMPLES = 16, 10.0, 256


def compare(
    words: Annotated[list[str], argument("A B ...", "Addresses of servers, or finished runs.")],
    within: Annotated[
        float,
        option("PERCENT", "Between the ends of the first metric's interval, where it is enough.", min=0.01, max=100),
    ] = 2.0,
    rounds: Annotated[int, option("N", "Rounds A B B A at most.", min=2, max=1000)] = 8,
    minutes: Annotated[float, option("N", "All rounds at most.", min=0.01, max=MOST_S / 60)] = 60.0,
    fail_if: Annotated[
        list[str] | None, option("CONDITION", "As report.py has it: 'output_tokens_per_s<-3%' (repeatable).")
    ] = None,
    results_dir: Annotated[Path, option("PATH", "Where runs are looked for, and the comparison goes.")] = Path(
        "results"
    ),
) -> int:
    sides, flags = ([word for word in words if word.startswith("-") == is_flag] for is_flag in (False, True))
    are_servers = [word.startswith(("http://", "https://")) for word in sides]
    if len(sides) < 2 or any(are_servers) != all(are_servers):
        raise UsageError("compare takes two servers or more, or two finished runs or more.")
    if not all(are_servers):
        from harness.commands.report import compare_runs
        from harness.runs import names

        if flags or fail_if:
            raise UsageError(
                f"{[*flags, '--fail-if'][0]}: for servers. Settings in this process: "
                "`sweep.py FILE --repeat 3`; a gate of finished runs: `report.py RUN --baseline RUN --fail-if ...`."
            )
        compare_runs(names.folders(sides, results_dir), None, None)
        return DONE
    from harness.reporting import regression

    conditions = [regression.condition(text) for text in fail_if or []]
    config = configured(flags, sides)
    return compare_servers(config, sides, (within, rounds, minutes), conditions, results_dir)


def with_values(words: Sequence[str]) -> Iterator[str]:
    """Each flag of run.py in one word with its value, which would else be taken for a server or a run."""
    left = iter(words)
    for word in left:
        value = (
            next(left, None)
            if word.startswith("--") and "=" not in word and word not in ("--help", "--fail-if")
            else None
        )
        if value is None or value.startswith("--"):
            yield from (word, *([] if value is None else with_values([value, *left])))
        else:
            yield f"{word}={value}"


command = make_command(compare, ABOUT, examples=EXAMPLES, rewrite=with_values, hands_on=True)


def configured(words: Sequence[str], sides: Sequence[str]) -> RunConfig:
    """A run of the first server, as run.py's flags say and where they do not with a short test. Raises UsageError."""
    endpoint.check_addresses(sides, "compare")
    if inner := [flag for flag in words if flag.partition("=")[0] in map(as_flag, endpoint.IN_PROCESS)]:
        raise UsageError(f"{inner[0]}: of an engine in this process: `python sweep.py FILE --repeat 3` compares those.")
    given: RunConfig = config_command(RunConfig, lambda config: config, "").main(  # type: ignore[assignment]
        [*words, f"--endpoint={sides[0]}"], standalone_mode=False
    )
    named: frozenset[str] = vars(given)["given"]
    defaults: dict[str, Any] = {"min_duration": TEST_S, "mode": "both" if given.official_workload else "performance"}
    if given.official_workload:
        defaults["total_sample_count"] = min(SAMPLES, given.task.samples)
    if not named & {
        "scenario",
        "concurrency",
        "server_target_qps",
        "arrivals",
        "samples_per_query",
        "offline_expected_qps",
    }:
        defaults["concurrency"] = CONCURRENCY
    settings = {name: getattr(given, name) for name in named} | {
        name: value for name, value in defaults.items() if name not in named
    }
    config = RunConfig(**settings, given=frozenset(settings))
    if config.tries_rates or config.batches or len(config.levels) > 1 or config.concurrency in ("max", "auto"):
        raise UsageError("compare holds servers against each other at one load: give one number.")
    return config


def compare_servers(
    config: RunConfig,
    addresses: Sequence[str],
    stopping: tuple[float, int, float],
    conditions: Sequence[Any],
    results_dir: Path,
) -> int:
    """The comparison in its own folder; ends the process with the exit code."""
    from harness.common import processes
    from harness.runs import ending
    from harness.runs import folder as results
    from harness.terminal import last_screen, progress

    processes.install_signal_handlers()
    folder = results.open_run(results_dir, "compare")
    log = folder.path / "engine.log"
    with progress.screen(log) as (console, errors):
        try:
            from harness.benchmark import rounds, verdict

            with progress.Display(console) as display:
                display.say(f"results: {folder.path}")
                found, pairs = rounds.compare_servers(config, addresses, rounds.Stopping(*stopping), folder, display)
            found = verdict.gate(found, conditions, pairs)
            verdict.write(folder.path, found)
            folder.set_status("complete")
            last_screen.show(console, verdict.last_screen(found), folder.path / verdict.REPORT)
            code = found.code
        except (Exception, KeyboardInterrupt) as error:
            code = ending.fail(error, folder, errors)
        ending.exit(code, log)
