"""Writes docs/evidence/performance.md: every figure from the runs kept in docs/runs.

python -m docs.generate.performance
"""

import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path

from docs.generate import data_share, performance_runs, trials
from docs.generate.performance_runs import RunLabel
from docs.generate.wrapping import wrapped
from harness.config import mlperf
from harness.core import files
from harness.core.document import Document
from harness.core.files import write_text
from harness.core.formatting import Measured, number
from harness.core.tables import Table, TableColumn
from harness.core.templates import render
from harness.loadgen.test_run import RECORDING, Recording
from harness.results.gpu_time import GpuTime
from harness.results.gpu_time_shares import shares_of
from harness.results.outcome import Outcome
from harness.results.published import ACCELERATORS, Published, results_of
from harness.results.summary import Summary
from harness.sweep import findings, report
from harness.sweep.experiment import from_summary
from harness.sweep.experiment_result import experiment_rows

HERE = Path(__file__).parents[1]
PAGE, RUNS = HERE / "evidence" / "performance.md", HERE / "runs"
H200_RUNS = RUNS / "h200"
RECORDINGS = HERE.parent / "tests" / "results" / "h200_recordings.json.gz"
Columns = Mapping[str, Sequence[float]]  # of machine.csv, by their names
RecordingsByTest = Mapping[str, Columns]
# NVIDIA's output tokens/s of TensorRT-LLM with 128 output tokens, for the two input lengths below.
TENSORRT_LLM = {"an H200": (27_911, 3_538), "an H100": (28_312, 3_450)}
TENSORRT_LLM_INPUTS = (128, 2048)  # tokens
LONG_QUEUE = 20  # waiting requests; more are counted as a long queue


@dataclass(frozen=True)
class KeptRun:
    """A run in docs/runs: its performance test, and the shares of the GPU's time in it, if they are known."""

    name: str
    test: Outcome
    gpu_time: GpuTime | None

    @classmethod
    def read(cls, folder: Path, recordings: RecordingsByTest | None = None) -> "KeptRun":
        """Read the run of a folder.

        If its summary does not have the shares of GPU time, they come from the recording of its performance test.
        """
        test = performance_test(folder / "summary.json")
        shares = list(test.details.gpu_time)
        if not shares and recordings:
            shares = list(shares_of({"test": recording_of(recordings["test"])}))
        return cls(folder.name, test, shares[-1] if shares else None)


Runs = Mapping[str, KeptRun]  # by their names


def recording_of(columns: Columns) -> Recording:
    quantities: dict[str, list[Measured]] = {}
    for name, values in columns.items():
        if name != "seconds":
            quantities[name] = list(values)
    return Recording(list(columns["seconds"]), quantities)


def performance_test(summary_path: Path) -> Outcome:
    test = files.read(summary_path, Summary).run.performance
    assert test is not None
    return test


def summary_of(name: str) -> Summary:
    return files.read(H200_RUNS / name / "summary.json", Summary)


def h200_runs() -> Runs:
    """Return all single runs on H200s. Sweeps, and logs of the reference implementation alone, are left out."""
    recordings = json.loads(gzip.decompress(RECORDINGS.read_bytes()))
    runs = {}
    for folder in H200_RUNS.iterdir():
        if (folder / "summary.json").exists():
            runs[folder.name] = KeptRun.read(folder, recordings.get(folder.name))
    return runs


def page() -> str:
    runs = h200_runs()
    text = render(
        "generate/performance.md.j2",
        speed={name: number(run.test.tokens_per_sec) for name, run in runs.items()},
        **full_length_values(runs),
        **published_values(runs),
        **patch_values(runs),
        **reference_values(runs),
        **trial_values(runs),
        **sweep_values(),
        **data_values(),
        **h100_values(),
        offline=offline_table(runs, "vLLM and setting", performance_runs.OFFLINE_RUNS),
        search=interrupted_search(),
    )
    return wrapped(text)


def full_length_values(runs: Runs) -> dict[str, object]:
    """Return the values of the section on runs at full length, by their names in the template."""
    full_labels, pool_labels = performance_runs.FULL_LENGTH_RUNS, performance_runs.POOL_RUNS
    two_gpus = runs[performance_runs.TWO_GPU_RUN].test.tokens_per_sec or 0.0
    one_gpu = runs[performance_runs.ONE_GPU_RUN].test.tokens_per_sec or 0.0
    return {
        "full": full_length_table([runs[name] for name in full_labels], "test", full_labels),
        "pool": full_length_table([runs[name] for name in pool_labels], "two H200s as one pool", pool_labels),
        "pool_queue": long_queue(H200_RUNS / performance_runs.POOL_RUN),
        "queue": long_queue(H200_RUNS / performance_runs.OVERLOADED_RUN),
        "many": LONG_QUEUE,
        "two": f"{number(two_gpus)} output tokens/s against {number(one_gpu)}",
        "ratio": number(two_gpus / one_gpu / 2, 3),
        "cards_differ": percent_above(
            runs[performance_runs.SECOND_CARD_RUN].test.samples_per_sec or 0.0,
            runs[performance_runs.FIRST_CARD_RUN].test.samples_per_sec or 0.0,
        ),
    }


def published_values(runs: Runs) -> dict[str, object]:
    """Return what others published of H200s and H100s, by the names in the template."""
    fastest = []
    for scenario in performance_runs.SCENARIOS:
        speed = published_results(scenario, "NVIDIA H200")[0].samples_per_sec
        fastest.append(f"{scenario} {number(speed)} samples/s")
    test = runs["off-3000-both-vllm032"].test
    return {
        "published": ", ".join(fastest),
        "published_alone": ", ".join(fastest_of_one_h200()),
        "tensorrt_llm": " and ".join(tensorrt_llm_speed(card, test) for card in TENSORRT_LLM),
        "submitted": vllm_submissions_table(),
    }


def patch_values(runs: Runs) -> dict[str, object]:
    """Return the tables of the section on patches, by their names in the template."""
    labels = performance_runs.SINGLE_STREAM_RUNS
    single_stream_columns: dict[str, TableColumn[KeptRun]] = {
        "vLLM": lambda run: labels[run.name],
        "TPOT p50, ms": attrgetter("test.tpot_ms.p50"),
        "J per token": attrgetter("test.joules_per_output_token"),
    }
    return {
        "patched": offline_table(runs, "vLLM", performance_runs.OFFLINE_PATCH_RUNS),
        "patched_single": Table.from_items([runs[name] for name in labels], single_stream_columns),
    }


def reference_values(runs: Runs) -> dict[str, object]:
    """Return the values of the section on MLPerf's reference implementation, by their names in the template."""
    speeds = {}
    for weights, names in performance_runs.REFERENCE_RUNS.items():
        speeds[weights] = {label: samples_per_sec(name, runs) for label, name in names.items()}
    rows = [[weights, *speeds_of_weights.values()] for weights, speeds_of_weights in speeds.items()]
    reference_before = samples_per_sec(performance_runs.REFERENCE_BEFORE, runs)
    own_speed = samples_per_sec(performance_runs.RUN_BETWEEN, runs)
    reference_after = samples_per_sec(performance_runs.REFERENCE_AFTER, runs)
    return {
        "reference": Table(["weights, samples/s", *performance_runs.REFERENCE_RUNS["fp8"]], rows),
        "bf16_behind": percent_above(
            speeds["bf16"][performance_runs.REFERENCE_IN_BATCHES], speeds["bf16"][performance_runs.UNTUNED]
        ),
        "in_turn_ahead": " and ".join(
            (percent_above(reference_before, own_speed), percent_above(reference_after, own_speed))
        ),
        "in_turn_scatter": percent_above(reference_after, reference_before),
        "preempted": preemptions(runs[performance_runs.RUN_BETWEEN].test),
    }


def trial_values(runs: Runs) -> dict[str, object]:
    """Return the values of the section on everything that was tried, by their names in the template."""
    return {
        "tried": trials.trial_table(summary_of),
        "equal_offline": trials.spread_percent([runs[name].test.samples_per_sec for name in trials.TURNS]),
        "equal_single": trials.spread_percent([runs[name].test.samples_per_sec for name in trials.SINGLES]),
        "algorithms": trials.fastest_algorithms(),
        "power": power_limit(),
    }


def sweep_values() -> dict[str, object]:
    """Return what the kept sweeps found, by the names in the template."""
    return {
        "sweep": sweep_findings(performance_runs.SWEEP),
        "isolation": isolation_table(),
        "isolation_left": unmeasured_settings(),
    }


def data_values() -> dict[str, object]:
    """Return the values of the section on how much of a number is its data, by their names in the template."""
    return {
        "data": data_share.table(),
        "data_distance": [
            data_share.most_between_random_and_trained("speed"),
            data_share.most_between_random_and_trained("energy"),
        ],
        "dummy_fp8": data_share.span("speed", "dummy", ["fp8"]),
        "dummy_fp8_energy": data_share.span("energy", "dummy", ["fp8"]),
        "dummy_bf16": data_share.span("speed", "dummy", ["bf16"]),
        "zero": data_share.span("speed", "zero"),
        "zero_energy": data_share.span("energy", "zero"),
    }


def h100_values() -> dict[str, object]:
    """Return the values of the section on the H100, by their names in the template."""
    labels = performance_runs.H100_RUNS
    patch_runs = [KeptRun.read(RUNS / name) for name in performance_runs.H100_PATCH_RUNS]
    single_stream = KeptRun.read(RUNS / performance_runs.H100_SINGLE_STREAM_RUN)
    return {
        "h100": full_length_table([KeptRun.read(RUNS / name) for name in labels], "one H100", labels),
        "h100_patched": " instead of ".join(number(run.test.samples_per_sec) for run in patch_runs),
        "h100_single": number(single_stream.test.tpot_ms.p50),
    }


SPEED_COLUMNS: dict[str, TableColumn[KeptRun]] = {
    "samples/s": attrgetter("test.samples_per_sec"),
    "output tokens/s": attrgetter("test.tokens_per_sec"),
    "J per token": attrgetter("test.joules_per_output_token"),
}


def offline_table(runs: Runs, head: str, labels: Mapping[str, str]) -> Table:
    """Return the speeds of the runs that have a label. `head` is the head of the labels' column."""
    columns: dict[str, TableColumn[KeptRun]] = {head: lambda run: labels[run.name], **SPEED_COLUMNS}
    return Table.from_items([runs[name] for name in labels], columns)


def full_length_table(runs: Sequence[KeptRun], head: str, labels: Mapping[str, RunLabel]) -> Table:
    """Return the results of runs at full length. `head` is the head of the column with what was asked of each."""
    columns: dict[str, TableColumn[KeptRun]] = {
        head: lambda run: labels[run.name].request,
        "LoadGen": lambda run: "VALID" if run.test.valid else "INVALID",
        **SPEED_COLUMNS,
        "TTFT p99, ms": attrgetter("test.ttft_ms.p99"),
        "TPOT p99, ms": attrgetter("test.tpot_ms.p99"),
        "idle, %": lambda run: gpu_time_percent(run.gpu_time, "idle", "idle_while_waiting"),
        "clock lowered, %": lambda run: gpu_time_percent(run.gpu_time, "held_by_power", "held_by_heat"),
        "other cards": lambda run: labels[run.name].other_cards,
    }
    return Table.from_items(runs, columns)


def gpu_time_percent(time: GpuTime | None, *shares: str) -> str:
    """Return the sum of shares of the GPU's time. A dash if they are not known."""
    if time is None:
        return "–"
    return number(sum(getattr(time, share) or 0.0 for share in shares), 3)


def long_queue(folder: Path) -> dict[str, str]:
    """Return in how many seconds of a run's test many requests waited, and of how many (`of`)."""
    recording = Recording.read(folder / "Performance" / RECORDING)
    waiting = recording.column("requests_waiting")
    seconds_with_queue = [count for count in waiting if (count or 0) > LONG_QUEUE]
    return {"seconds": number(len(seconds_with_queue), 3), "of": number(len(waiting), 3)}


def percent_above(speed: float, base: float) -> str:
    return number(100 * (speed / base - 1), 2)


def samples_per_sec(name: str, runs: Runs) -> float:
    """Return the speed of a run or, for one of the reference implementation, that in LoadGen's summary.

    The reference implementation leaves no other result.
    """
    if name in runs:
        return runs[name].test.samples_per_sec or 0.0
    text = (H200_RUNS / name / "mlperf_log_summary.txt").read_text()
    match = re.search(r"^Samples per second: ([\d.]+)$", text, re.M)
    assert match
    return float(match[1])


def preemptions(test: Outcome) -> str:
    """Return how many requests of a test were preempted, and what share of its requests."""
    details = test.details
    assert details.usage["preemptions"] and details.duration_s and test.samples_per_sec
    preempted = details.usage["preemptions"].mean * details.duration_s
    requests = test.samples_per_sec * details.duration_s
    return f"{number(preempted, 3)} requests ({number(100 * preempted / requests, 2)} %)"


def published_results(scenario: str, accelerator: str) -> list[Published]:
    """Return the published results on a kind of accelerator, fastest first.

    `accelerator` is the driver's name of it, or that in published results.
    """
    device = ACCELERATORS.get(accelerator, accelerator)
    return [result for result in results_of(scenario) if result.device == device]


def fastest_of_one_h200() -> Iterator[str]:
    """Yield each scenario's fastest published result of one H200 in a system of its own; no text if there is none."""
    for scenario in performance_runs.SCENARIOS:
        results = [result for result in published_results(scenario, "NVIDIA H200") if result.accelerators == 1]
        if results:
            yield f"{scenario} {number(results[0].samples_per_sec)} samples/s ({results[0].round})"


def vllm_submissions_table() -> Table:
    """Return what others published of an H100 with vLLM."""
    results: list[Published] = []
    for scenario in performance_runs.SCENARIOS:
        results += published_results(scenario, performance_runs.CARD)
    columns: dict[str, TableColumn[Published]] = {
        "published of an H100 with vLLM": lambda result: (
            f"{result.scenario}, {result.submitter}, MLPerf {result.round}"
        ),
        "software": lambda result: result.software.partition(",")[0],
        "samples/s of a card": "samples_per_sec",
    }
    return Table.from_items([result for result in results if result.is_vllm], columns)


def tensorrt_llm_speed(card: str, test: Outcome) -> str:
    """Return the speed that NVIDIA's table gives a card at the mean length of a test's prompts.

    A request's time is assumed to grow evenly with its input between the two lengths of the table.
    """
    details = test.details
    assert details.total_input_tokens and details.samples
    mean_input = details.total_input_tokens / details.samples
    short_input, long_input = TENSORRT_LLM_INPUTS
    short_s, long_s = (mlperf.MAX_NEW_TOKENS / tokens_per_sec for tokens_per_sec in TENSORRT_LLM[card])
    share = (mean_input - short_input) / (long_input - short_input)  # of the way from the short input to the long one
    request_s = short_s + (long_s - short_s) * share
    return f"{number(1 / request_s, 2)} samples/s on {card}"


def isolation_table() -> Table:
    """Return the measured experiments of the sweeps of isolated settings."""
    rows = []
    for weights, sweep_name in performance_runs.ISOLATION_SWEEPS.items():
        folder = H200_RUNS / sweep_name
        tests = {name: performance_test(folder / f"{name}-summary.json") for name in measured_experiments(folder)}
        base_speed = tests["baseline"].tokens_per_sec or 0.0
        for name, test in tests.items():
            speed = test.tokens_per_sec or 0.0
            change = "–" if name == "baseline" else f"{100 * (speed / base_speed - 1):+.1f}"
            joules, duration = number(test.joules_per_output_token), number(test.details.duration_s, 3)
            rows.append([weights, name, number(speed), change, joules, duration])
    columns = ["weights", "experiment", "output tokens/s", "change, %", "J per token", "test, s"]
    return Table(columns, rows)


def measured_experiments(sweep_folder: Path) -> list[str]:
    records = report.read_state(sweep_folder).records
    return [record.experiment for record in records if record.status == "complete"]


def unmeasured_settings() -> dict[str, str]:
    """Return the experiments of the sweeps of isolated settings that were not run, by the format of the weights."""
    names_by_weights = {}
    for weights, sweep_name in performance_runs.ISOLATION_SWEEPS.items():
        folder = H200_RUNS / sweep_name
        measured = measured_experiments(folder)
        experiments = report.read_state(folder).sweep.experiments
        unmeasured = [experiment.name for experiment in experiments if experiment.name not in measured]
        names_by_weights[weights] = ", ".join(unmeasured)
    return names_by_weights


def interrupted_search() -> dict[str, str]:
    """Return the figures of the first full test of a search for Interactive's highest rate.

    The machine was given back during the second.
    """
    summary = files.read(RUNS / performance_runs.INTERRUPTED_SEARCH / "summary.json", Summary)
    (test,) = summary.run.attempts or []
    assert not test.valid
    limits = mlperf.SCENARIOS["interactive"].limits
    assert limits is not None
    return {
        "rate": number(test.load),
        "tokens": number(test.tokens_per_sec),
        "joules": number(test.joules_per_output_token),
        "seconds": number(test.issue_s),
        "tpot": number(test.tpot_ms.p99),
        "ttft": number(test.ttft_ms.p99),
        "tpot_limit": number(limits.tpot),
        "ttft_limit": number(limits.ttft),
    }


def power_limit() -> str:
    """Return the power limit of the cards of the trials. Fails if they had different ones."""
    limits = set()
    for trial in trials.TRIALS:
        for name in (*trial.without, *trial.with_it):
            limits.add(summary_of(name).system.gpu_settings.get("power limit"))
    (limit,) = limits - {None}  # Some runs did not record it.
    return str(limit)


def sweep_findings(name: str) -> Document:
    """Return the findings of a kept sweep.

    The outcomes are read from the summaries of its runs, as this version of the program reads them.
    """
    folder = H200_RUNS / name
    state = report.read_state(folder)
    records = []
    for record in state.records:
        if record.status != "complete":
            records.append(record)
            continue
        summary = files.read(folder / f"{record.experiment}-summary.json", Summary)
        records.append(replace(record, outcome=from_summary(summary)))
    state = replace(state, records=tuple(records))
    return findings.document(findings.SweepReport(state, tuple(experiment_rows(state))))


if __name__ == "__main__":
    write_text(PAGE, page() + "\n")
    print(PAGE)
