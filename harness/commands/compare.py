"""Servers under the same requests, or finished runs side by side: `python -m harness compare --help` has the flags."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

from pydantic_core import to_jsonable_python

from harness.config.config_command import config_command
from harness.config.engine import IN_PROCESS_FLAGS
from harness.config.flags import BENCHMARK_TOPIC, RESULTS_TOPIC, flag
from harness.config.mlperf import SCENARIOS
from harness.config.patterns import Poisson
from harness.config.run import SCENARIO_BY_FLAG, RunConfig, scenario_of
from harness.config.setting_types import positive_bounds
from harness.core.errors import DONE
from harness.core.given_values import flag_name
from harness.report.compare import run_letters
from harness.results.change import FEWEST_PAIRS
from harness.runs import find
from harness.sweep import sweep_state
from harness.sweep.file import SWEEP_FLAGS, FileSettings, Source, Sweep, SweepFile, Variant, merged_sweep

ABOUT = """Compare servers under the same requests, or finished runs as `report.py --compare` does. A, B, ... are the
addresses of servers, or RUNs as in report.py. The servers are tested in turn (A B, then B A) until their difference is
known to --within percent. The flags of run.py that apply to a server are accepted, with other defaults for the load: 16
requests in flight for 10 s. To compare settings of vLLM without a server, use a sweep: `python sweep.py FILE --repeat
3`."""
EXAMPLES = (
    "python -m harness compare http://a:8000/v1 http://b:8000/v1 --concurrency 16",
    "python -m harness compare http://a:8000/v1 http://b:8000/v1 --fail-if 'output_tokens_per_s<-3%'",
    "python -m harness compare before after",
)
DEFAULT_SAMPLES = 256
HOST_AND_PORT = r"[\w.-]+:\d+(/\S*)?"
DEFAULT_CONCURRENCY = 16
SHORTEST_TEST_S, LONGEST_TEST_S = 2.0, 10.0  # seconds of a test whose length was not given
TEST_SHARE = 0.8  # share of --minutes for the tests; the rest is for the answers of the first round
OVERHEAD_S = 4.0  # seconds of a test's start, calibration and end
# Flags of run.py that -h leaves out here: a server has its own settings, and the operands are its addresses.
LEFT_OUT = (*IN_PROCESS_FLAGS, "backend", "endpoint", "high_accuracy", "max_model_len", "quick")
BASIC_OF_RUN = [name for name in RunConfig.BASIC.split() if name not in LEFT_OUT]


class CompareConfig(RunConfig):
    """The settings of a comparison: what each server is asked, and when enough is known."""

    side: tuple[str, ...] = flag((), RESULTS_TOPIC, "nothing", metavar="RUN")
    within: Annotated[float, positive_bounds(100)] = flag(2.0, BENCHMARK_TOPIC, "nothing")
    """Stop when the interval of the change in speed (at a given rate, in latency p50) is narrower than X percent."""
    rounds: Annotated[int, positive_bounds(1000)] = flag(8, BENCHMARK_TOPIC, "nothing")
    """Maximum number of rounds, at least 2; a round tests each server twice (A B B A)."""
    minutes: Annotated[float, positive_bounds(10**5)] = flag(60.0, BENCHMARK_TOPIC, "nothing")
    """Stop after this many minutes; tests are shortened so that each server can be tested three times."""
    resume: bool = flag(False, RESULTS_TOPIC, "nothing")
    """Continue the last comparison of these servers and settings."""
    fail_if: tuple[str, ...] = flag((), RESULTS_TOPIC, "nothing", metavar="CONDITION")
    """Condition that makes B a regression from A, as in report.py: 'output_tokens_per_s<-3%' (repeatable)."""
    dry_run: bool = flag(False, RESULTS_TOPIC, "nothing")

    BASIC = f"category within rounds minutes resume fail_if {' '.join(BASIC_OF_RUN)}"

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each setting or combination of settings that a comparison does not take.

        A comparison takes servers (`endpoint`) or finished runs (`side`), but not both.
        """
        yield from super().problems()
        has_both_kinds = bool(self.side and self.endpoint)
        if has_both_kinds or len(self.side or self.endpoint) < 2:
            yield "compare needs at least two servers, or at least two finished runs."
        # A word such as host:8000 was read as the name of a run (`side`), but is the address of a server.
        without_scheme = [run_name for run_name in self.side if re.fullmatch(HOST_AND_PORT, run_name)]
        if without_scheme:
            yield f"{without_scheme[0]}: a server's address begins with its scheme: http://{without_scheme[0]}"
        flags_of_servers = self.named_settings - {"side", "results_dir"}
        compares_runs = self.side and not without_scheme
        if compares_runs and flags_of_servers:
            yield (  # The first of these flags by name stands for all.
                f"{flag_name(min(flags_of_servers))} applies to servers only. Compare settings in this process by "
                "`sweep.py FILE --repeat 3`, finished runs by `report.py RUN --baseline RUN --fail-if ...`."
            )
        has_several_loads = self.has_several_rates or self.batches or len(self.levels) > 1
        if has_several_loads or self.concurrency in ("max", "auto"):
            yield "compare tests servers at one load: give a single number."
        if self.mode == "accuracy":
            yield "compare measures speed; with --mode both it compares answers as well."
        if self.rounds < 2:
            yield "--rounds must be at least 2."
        if self.following_scenarios:
            yield "compare tests servers in one scenario: give --scenario one name."
        if self.dry_run:
            yield "compare has no --dry-run."
        if self.json and not self.fail_if:
            yield "--json prints the verdicts of --fail-if, which is missing; all figures are in sweep.json."

    def implications(self, given: frozenset[str]) -> dict[str, object]:
        """Return the settings that a comparison has by default, and the settings that follow from others.

        `given` has the names of the settings that the user gave, which keep their values.
        """
        defaults: dict[str, object] = {"mode": "performance"}
        pattern = SCENARIOS[scenario_of(self.values(given))].pattern
        # LoadGen calls a test with Poisson arrivals INVALID if it is too short, so such a test keeps its full length.
        if not isinstance(pattern, Poisson):
            defaults["min_duration"] = self.test_seconds
        if self.is_official_workload:  # With MLPerf's samples, the accuracy test also runs, to compare the answers.
            available_samples = self.model_spec.task("datacenter", "concurrency").samples
            defaults["mode"] = "both"
            # The demo has fewer samples than the default number.
            defaults["total_sample_count"] = min(DEFAULT_SAMPLES, available_samples)
        if not given & {"scenario", *SCENARIO_BY_FLAG}:  # No flag names or implies a scenario.
            defaults["concurrency"] = DEFAULT_CONCURRENCY
        used_defaults = {name: value for name, value in defaults.items() if name not in given}
        # What follows from the defaults is computed as if the user had given them.
        following = super().implications(given | frozenset(used_defaults))
        return following | used_defaults

    @property
    def test_seconds(self) -> float:
        """The seconds of a test, so that FEWEST_PAIRS tests of each server and their answers fit into --minutes.

        On a slow server a test lasts longer, since it has at least the fewest requests of its scenario.
        """
        # There are at least two servers; `problems` reports it if there are fewer.
        test_count = FEWEST_PAIRS * max(2, len(self.endpoint))
        seconds_for_tests = TEST_SHARE * 60 * self.minutes  # The time that is left over is for the answers.
        seconds = seconds_for_tests / test_count - OVERHEAD_S  # without a test's start, calibration and end
        return max(SHORTEST_TEST_S, min(LONGEST_TEST_S, round(seconds, 1)))

    @property
    def accepts_minutes(self) -> bool:
        """Tell whether --minutes may be given: always, since the minutes are those of the whole comparison."""
        return True


def parse_sides(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of the command compare, with each server and run before the first flag turned into a flag.

    A word with :// is a server's address, any other word names a finished run. So `http://a:8000 --rounds 4` becomes
    `--endpoint=http://a:8000 --rounds 4`.
    """
    has_flag = False
    for word in words:
        has_flag = has_flag or word.startswith("-")
        if has_flag:
            yield word
        elif "://" in word:
            yield f"--endpoint={word}"
        else:
            yield f"--side={word}"


def compare(config: CompareConfig) -> int:
    """Compare finished runs and return the exit code, or else compare servers, which ends the process."""
    if config.side:
        from harness.commands.report import compare_runs

        compare_runs(find.folders(config.side, config.results_dir), csv=None, plot=None, page=None)
        return DONE
    compare_servers(config)


def compare_servers(config: CompareConfig) -> NoReturn:
    """Test servers in turns, by a sweep, and end the process with the sweep's exit code.

    Raises UsageError for a condition of --fail-if that is not valid.
    """
    from harness.core import processes
    from harness.report import regression
    from harness.runner.tracking import check_installed
    from harness.sweep import loop
    from harness.sweep.lanes import Lane

    check_installed(config.mlflow)
    for text in config.fail_if:
        regression.parse_condition(text)  # only to raise the error for a wrong condition before any test
    processes.install_signal_handlers()  # SIGTERM then ends this command as Ctrl-C does, with all its processes.
    sweep = sweep_of(config)
    # A comparison can be resumed only with the same settings, also with the same length of a test. That length depends
    # on --minutes, which may differ now, so the earlier length is taken, unless the user gave a length.
    if config.resume and "min_duration" not in config.named_settings:
        sweep = loop.with_earlier_length(sweep, config.results_dir)
    options = sweep_state.SweepOptions(
        repeat=2 * config.rounds,  # A round of --rounds is A B B A. For a sweep, A B and B A are two rounds.
        limit=60 * config.minutes,
        alternate=True,
        mlflow=config.mlflow,
        json=config.json,
    )
    state = loop.begin_sweep(
        sweep,
        config.results_dir,
        [*sweep.experiments],
        options,
        skipped={},  # Every server can be tested.
        is_resumed=config.resume,
        within=config.within,
        fail_if=config.fail_if,
    )
    whole_machine = Lane()  # The tests run one at a time, with the machine for themselves.
    loop.run_to_exit(state, [whole_machine])  # ends the process


def sweep_of(config: CompareConfig) -> Sweep:
    """Return the comparison of servers as a sweep.

    The first server is the baseline; each of the others is an experiment, whose name is the server's letter.
    """
    all_settings = to_jsonable_python(vars(config))
    settings = RunConfig.non_default_settings(all_settings)
    for name in (*SWEEP_FLAGS, "minutes"):  # flags of the comparison as a whole; a run of it has no such setting
        settings.pop(name, None)
    letters = run_letters(len(config.endpoint))
    servers = [{"endpoint": address} for address in config.endpoint]
    challengers = []
    for letter, server in zip(letters[1:], servers[1:], strict=True):
        challengers.append(Variant(name=letter, set=server))
    content = SweepFile(
        about="Servers under the same requests",
        baseline=FileSettings(set=settings | servers[0]),  # one server in place of the list of all
        isolation=challengers,  # Each has the settings of the baseline, but its own server.
    )
    source = Source(Path("compare"), content, lines={})  # No file was read, so no setting has a line in one.
    return merged_sweep([source])


command = config_command(
    CompareConfig,
    compare,
    ABOUT,
    EXAMPLES,
    rewrite=parse_sides,
    operands="A B [C ...]",
    not_accepted="a --fail-if condition is met",
    bad_input="--fail-if cannot be judged, or wrong usage or input",
)
