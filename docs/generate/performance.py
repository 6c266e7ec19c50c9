"""Writes docs/evidence/performance.md: every figure from the runs kept in docs/runs.

python -m docs.generate.performance
"""

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from docs.generate import data_share, trials
from docs.generate.wrapping import wrapped
from harness.config import mlperf
from harness.core import files
from harness.core.files import write_text
from harness.core.formatting import number
from harness.core.tables import Table, TableColumn
from harness.core.templates import render
from harness.loadgen.test_run import Recording
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
RECORDINGS = HERE.parent / "tests" / "results" / "h200_recordings.json.gz"
SWEEP, CARD = "sweep-single-vllm032", "NVIDIA H100 80GB HBM3"
ISOLATION = {"fp8 (static)": "sweep-isolation-fp8-vllm032", "bf16": "sweep-isolation-bf16-vllm032"}
INTERRUPTED_SEARCH = "h200-interactive-max"  # its first full test is an attempt
OTHER, TWO = "another run", "the other test"  # what the host's other cards did
FOUR, ALONE = "three more tests", "not known"
OFFLINE = {  # by what the row is called; the settings stand in the runs' own files
    "off-static-vllm024": "0.24.0: as a checkpoint comes",
    "off-torchmm-vllm024": "0.24.0: `linear_backend=torch` (cuBLASLt)",
    "off-2048x32k-vllm024": "0.24.0: 2,048 sequences, steps of 32,768",
    "off-kv16-vllm024": "0.24.0: KV cache in 16 bits",
    "off-triton-vllm024": "0.24.0: attention by Triton",
    "off-static-vllm032": "0.32.0: as a checkpoint comes",
    "off-torchmm-vllm032": "0.32.0: `linear_backend=torch`",
    "off-xqa-torch-vllm032": "0.32.0: the same, `attention_backend=FLASHINFER` (XQA)",
    "off-4000-vllm032": "0.32.0: the same, 2,048 sequences, steps of 32,768, graphs to 2,048",
}
PATCHED = {  # one card of one host, one after the other; its second card: the two runs of SINGLE, then Interactive
    "off-3000-both-vllm032": "fast accumulation, activation by Inductor",
    "off-3000-fast-vllm032": "fast accumulation",
    "off-3000-both-again-vllm032": "both, again",
    "off-3000-base-vllm032": "vLLM as it is installed",
}
SINGLE = {"single-both-vllm032": "both", "single-base-vllm032": "vLLM as it is installed"}
FULL = {  # the run, what was asked, what else the host did
    "full-offline-vllm032": ("Offline", TWO),
    "full-offline-fast-vllm032": ("Offline, fast accumulation", OTHER),
    "full-offline-both-vllm032": ("Offline, both patches", OTHER),
    "full-server-65-both-vllm032": ("Server, 65 queries/s, both patches, graphs to 2,048", TWO),
    "full-server-62.5-fast-vllm032": ("Server, 62.5 queries/s, fast accumulation, graphs to 2,048", ALONE),
    "full-server-64-fast-vllm032": ("Server, 64 queries/s, fast accumulation, graphs to 2,048", OTHER),
    "full-server-61-vllm032": ("Server, 61 queries/s, graphs to 2,048", OTHER),
    "full-server-max-both-vllm032": ("Server, `max`, both patches, graphs to 2,048", "nothing"),
    "full-server-max-vllm032": ("Server, `max`, graphs to 1,024", OTHER),
    "full-interactive-55-both-cap208-vllm032": ("Interactive, 55 queries/s, both patches, cap 208", TWO),
    "full-interactive-57-both-cap208-vllm032": ("Interactive, 57 queries/s, both patches, cap 208", FOUR),
    "full-interactive-52-fast-cap208-vllm032": (
        "Interactive, 52 queries/s, fast accumulation, cap 208",
        OTHER,
    ),
    "full-interactive-max-both-cap208-vllm032": ("Interactive, `max`, both patches, cap 208", OTHER),
    "full-interactive-max-4096-graphs2048-vllm032": ("Interactive, `max`", OTHER),
    "full-interactive-53-4096-graphs2048-vllm032": ("Interactive, 53 queries/s", OTHER),
}
POOL = {"full-pool-interactive-105-both-vllm032": ("Interactive, 105 queries/s, both patches, cap 208 each", FOUR)}
TENSORRT_LLM = {"an H200": (27_911, 3_538), "an H100": (28_312, 3_450)}  # output tokens/s by NVIDIA, 128 tokens out
TENSORRT_LLM_INPUTS = (128, 2048)  # tokens, of these two columns
IN_TURN = (  # bf16, one card, one after the other: the reference, this runner, the reference
    "reference-bs1024-bf16-before",
    "off-3072-bf16-between-vllm032",
    "reference-bs1024-bf16-after",
)
REFERENCE = {  # MLPerf's implementation, by weights and batch, and ours: each kind of weights on one card
    "fp8": {
        "reference, its batch of 16": "reference-bs16-fp8",
        "reference, batches of 1,024": "reference-bs1024-fp8",
        "this runner, vLLM's defaults": "off-3072-default-vllm032",
        "this runner, tuned": "off-3072-fast-vllm032",
    },
    "bf16": {
        "reference, its batch of 16": "reference-bs16-bf16",
        "reference, batches of 1,024": "reference-bs1024-bf16",
        "this runner, vLLM's defaults": "off-3072-bf16-vllm032",
        "this runner, tuned": "off-3072-bf16-16384-vllm032",
    },
}
MANY = 20  # requests that wait: a queue
H100 = {  # the same of H100s
    "h100-offline-both": ("Offline, both patches", TWO),
    "h100-offline": ("Offline", ALONE),
    "h100-server": ("Server, 50 queries/s", TWO),
    "h100-interactive-48-both-cap208": ("Interactive, 48 queries/s, both patches, cap 208", TWO),
    "h100-interactive": ("Interactive, 40 queries/s", TWO),
}
H100_PATCHED = ("h100-off-3000-both", "h100-off-3000-base")  # one card, 1,024 sequences, steps of 32,768


@dataclass(frozen=True)
class Kept:
    """A kept run: its performance test, and where the GPU's time went in it."""

    name: str
    test: Outcome
    time: GpuTime | None = None

    @classmethod
    def of(cls, name: str, folder: Path) -> "Kept":
        """A run whose summary says where the GPU's time went."""
        test = files.read(folder / "summary.json", Summary).run.performance
        assert test is not None
        return cls(name, test, test.details.gpu_time[-1] if test.details.gpu_time else None)

    @classmethod
    def read(cls, name: str, recordings: Mapping[str, Any]) -> "Kept":
        summary = files.read(RUNS / "h200" / name / "summary.json", Summary)
        assert summary.run.performance is not None
        columns = recordings.get(name, {}).get("test", {})
        values = {key: column for key, column in columns.items() if key != "seconds"}
        times = shares_of({"test": Recording(columns["seconds"], values)}) if columns else iter(())
        recorded = summary.run.performance.details.gpu_time
        return cls(name, summary.run.performance, recorded[-1] if recorded else next(times, None))


def of(name: str) -> TableColumn[Kept]:
    """A column of a number of the test, by its path."""

    def read(kept: Kept) -> object:
        value: Any = kept.test
        for step in name.split("."):
            value = getattr(value, step, None) if value is not None else None
        return value

    return read


def share(name: str) -> Callable[[Kept], str]:
    """A column of a share of the GPU's time, percent."""

    def read(kept: Kept) -> str:
        if kept.time is None:
            return "–"
        parts = {"idle": ("idle", "idle_while_waiting"), "held": ("held_by_power", "held_by_heat")}[name]
        return number(sum(getattr(kept.time, part) or 0.0 for part in parts), 3)

    return read


SPEEDS: dict[str, TableColumn[Kept]] = {
    "samples/s": of("samples_per_sec"),
    "output tokens/s": of("tokens_per_sec"),
    "J per token": of("joules_per_output_token"),
}


def points(scenario: str, accelerator: str) -> list[Published]:
    """The published results on a kind of accelerator, as a driver or MLPerf calls it; the fastest first."""
    name = ACCELERATORS.get(accelerator, accelerator)
    return [each for each in results_of(scenario) if each.device == name]


def page() -> str:
    """The page."""
    recordings = json.loads(gzip.decompress(RECORDINGS.read_bytes()))
    read = partial(Kept.read, recordings=recordings)
    names = [path.name for path in (RUNS / "h200").iterdir() if (path / "summary.json").exists()]
    kept = {name: read(name) for name in names}
    two, one = (kept[name].test.tokens_per_sec or 0.0 for name in ("off-two-gpus-13368-vllm032", "off-6684-vllm032"))
    single_both = Kept.of("h100-single-both", RUNS / "h100-single-both").test.tpot_ms
    best = (f"{name} {number(points(name, 'NVIDIA H200')[0].samples_per_sec)} samples/s" for name in SCENARIOS)
    by_weights = {weights: {head: rate(name, kept) for head, name in row.items()} for weights, row in REFERENCE.items()}
    whole, ours = ([*by_weights["bf16"].values()][place] for place in (1, 2))
    before, between, after = (rate(name, kept) for name in IN_TURN)
    one_card, other_card = (
        rate(name, kept) for name in ("off-3000-fast-another-card-vllm032", "off-3072-fast-vllm032")
    )
    text = render(
        "generate/performance.md.j2",
        speed={name: number(each.test.tokens_per_sec) for name, each in kept.items()},
        full=at_full_length([kept[name] for name in FULL], "test", FULL),
        offline=Table.from_items(
            [kept[name] for name in OFFLINE], {"vLLM and setting": lambda each: OFFLINE[each.name], **SPEEDS}
        ),
        patched=Table.from_items([kept[name] for name in PATCHED], {"vLLM": lambda each: PATCHED[each.name], **SPEEDS}),
        pool=at_full_length([kept[name] for name in POOL], "two H200s as one pool", POOL),
        pool_queue=queued(RUNS / "h200" / "full-pool-interactive-105-both-vllm032"),
        queue=queued(RUNS / "h200" / "full-interactive-57-both-cap208-vllm032"),
        many=MANY,
        patched_single=Table.from_items(
            [kept[name] for name in SINGLE],
            {
                "vLLM": lambda each: SINGLE[each.name],
                "TPOT p50, ms": of("tpot_ms.p50"),
                "J per token": of("joules_per_output_token"),
            },
        ),
        published=", ".join(best),
        published_alone=", ".join(alone_published()),
        tensorrt_llm=" and ".join(between_lengths(card, kept["off-3000-both-vllm032"].test) for card in TENSORRT_LLM),
        reference=Table(
            ["weights, samples/s", *REFERENCE["fp8"]], [[name, *row.values()] for name, row in by_weights.items()]
        ),
        bf16_behind=number(100 * (whole / ours - 1), 2),
        in_turn_ahead=" and ".join(number(100 * (theirs / between - 1), 2) for theirs in (before, after)),
        in_turn_scatter=number(100 * (after / before - 1), 2),
        preempted=preempted(kept["off-3072-bf16-between-vllm032"].test),
        cards_differ=number(100 * (other_card / one_card - 1), 2),
        two=f"{number(two)} output tokens/s against {number(one)}",
        ratio=number(two / one / 2, 3),
        sweep=sweep(SWEEP),
        isolation=isolation_table(),
        isolation_left=settings_left(),
        tried=trials.trial_table(summary_of),
        equal_offline=trials.spread_percent([kept[name].test.samples_per_sec for name in trials.TURNS]),
        equal_single=trials.spread_percent([kept[name].test.samples_per_sec for name in trials.SINGLES]),
        algorithms=trials.fastest_algorithms(),
        power=power_limit(),
        data=data_share.table(),
        data_distance=[data_share.most_between_random_and_trained(measure) for measure in ("speed", "energy")],
        dummy_fp8=data_share.span("speed", "dummy", ["fp8"]),
        dummy_fp8_energy=data_share.span("energy", "dummy", ["fp8"]),
        dummy_bf16=data_share.span("speed", "dummy", ["bf16"]),
        zero=data_share.span("speed", "zero"),
        zero_energy=data_share.span("energy", "zero"),
        search=interrupted_search(),
        h100=at_full_length([Kept.of(name, RUNS / name) for name in H100], "one H100", H100),
        h100_patched=" instead of ".join(
            number(Kept.of(name, RUNS / name).test.samples_per_sec) for name in H100_PATCHED
        ),
        h100_single=number(single_both.p50) if single_both else "",
        submitted=submitted(),
    )
    return wrapped(text)


SCENARIOS = ("Offline", "Server", "Interactive")


def alone_published() -> Iterator[str]:
    """The fastest published results of one H200 in a system of its own; nothing of a scenario without any."""
    for name in SCENARIOS:
        alone = [point for point in points(name, "NVIDIA H200") if point.accelerators == 1]
        yield from (f"{name} {number(point.samples_per_sec)} samples/s ({point.round})" for point in alone[:1])


def between_lengths(card: str, test: Outcome) -> str:
    """What NVIDIA's table gives a card at a test's mean prompt, if a request's time grows evenly with its input."""
    details = test.details
    assert details.total_input_tokens and details.samples
    length = details.total_input_tokens / details.samples
    short, long = TENSORRT_LLM_INPUTS
    short_s, long_s = (mlperf.MAX_NEW_TOKENS / rate for rate in TENSORRT_LLM[card])
    seconds = short_s + (long_s - short_s) * (length - short) / (long - short)
    return f"{number(1 / seconds, 2)} samples/s on {card}"


def rate(name: str, kept: Mapping[str, Kept]) -> float:
    """Samples/s of a kept run, or of LoadGen's summary alone, which is what the reference implementation leaves."""
    if name in kept:
        return kept[name].test.samples_per_sec or 0.0
    return logged(name, "Samples per second")


def logged(name: str, what: str) -> float:
    """A number of LoadGen's summary."""
    text = (RUNS / "h200" / name / "mlperf_log_summary.txt").read_text()
    found = re.search(rf"^{what}: ([\d.]+)$", text, re.M)
    assert found
    return float(found[1])


def preempted(test: Outcome) -> str:
    """How many requests of a test were preempted, and what share of its requests."""
    details = test.details
    assert details.usage["preemptions"] and details.duration_s and test.samples_per_sec
    count = details.usage["preemptions"].mean * details.duration_s
    return f"{number(count, 3)} requests ({number(100 * count / (test.samples_per_sec * details.duration_s), 2)} %)"


def summary_of(name: str) -> Summary:
    return files.read(RUNS / "h200" / name / "summary.json", Summary)


def isolation_table() -> Table:
    """The experiments of the isolated settings that were measured, with each format of weights."""
    rows = []
    for weights, name in ISOLATION.items():
        folder = RUNS / "h200" / name
        experiments = [record.experiment for record in report.read_state(folder).records if record.status == "complete"]
        tests = {experiment: experiment_test(folder, experiment) for experiment in experiments}
        base = tests["baseline"].tokens_per_sec or 0.0
        for experiment, test in tests.items():
            speed = test.tokens_per_sec or 0.0
            change = "–" if experiment == "baseline" else f"{100 * (speed / base - 1):+.1f}"
            joules = number(test.joules_per_output_token)
            rows.append([weights, experiment, number(speed), change, joules, number(test.details.duration_s, 3)])
    columns = ["weights", "experiment", "output tokens/s", "change, %", "J per token", "test, s"]
    return Table(columns, rows)


def experiment_test(folder: Path, experiment: str) -> Outcome:
    test = files.read(folder / f"{experiment}-summary.json", Summary).run.performance
    assert test is not None
    return test


def settings_left() -> dict[str, str]:
    """The experiments of each kept sweep of isolated settings that were not run, by the weights' format."""
    left = {}
    for weights, name in ISOLATION.items():
        state = report.read_state(RUNS / "h200" / name)
        done = {record.experiment for record in state.records if record.status == "complete"}
        names = [experiment.name for experiment in state.sweep.experiments if experiment.name not in done]
        left[weights] = ", ".join(names)
    return left


def interrupted_search() -> dict[str, str]:
    """The first full test of a search for Interactive's highest rate, whose second was cut off."""
    (test,) = files.read(RUNS / INTERRUPTED_SEARCH / "summary.json", Summary).run.attempts or []
    assert not test.valid
    figures = {
        "rate": test.load,
        "sent": test.sent,
        "tokens": test.tokens_per_sec,
        "joules": test.joules_per_output_token,
        "seconds": test.issue_s,
        "tpot": test.tpot_ms.p99,
        "ttft": test.ttft_ms.p99,
    }
    limits = mlperf.SCENARIOS["interactive"].limits
    assert limits is not None
    figures |= {"tpot_limit": limits.tpot, "ttft_limit": limits.ttft}
    return {name: number(value) for name, value in figures.items()}


def power_limit() -> str:
    """The power limit of the cards of the trials, which is one."""
    names = {name for trial in trials.TRIALS for name in (*trial.without, *trial.with_it)}
    (limit,) = {summary_of(name).system.gpu_settings.get("power limit") for name in names} - {None}
    return str(limit)


def sweep(name: str) -> Any:
    """The finding of a kept sweep, its outcomes read from the runs as this version reads them."""
    folder = RUNS / "h200" / name
    state = report.read_state(folder)
    summaries = {
        record.experiment: files.read(folder / f"{record.experiment}-summary.json", Summary)
        for record in state.records
        if record.status == "complete"
    }
    records = tuple(
        replace(record, outcome=from_summary(summaries[record.experiment]))
        if record.experiment in summaries
        else record
        for record in state.records
    )
    state = replace(state, records=records)
    return findings.document(findings.SweepReport(state, tuple(experiment_rows(state))))


def at_full_length(kept: Sequence[Kept], head: str, words: Mapping[str, tuple[str, str]]) -> Table:
    """Runs at full length; `words` has what was asked of each, and what its host did."""
    columns: dict[str, TableColumn[Kept]] = {
        head: lambda each: words[each.name][0],
        "LoadGen": lambda each: "VALID" if each.test.valid else "INVALID",
        **SPEEDS,
        "TTFT p99, ms": of("ttft_ms.p99"),
        "TPOT p99, ms": of("tpot_ms.p99"),
        "idle, %": share("idle"),
        "clock lowered, %": share("held"),
        "other cards": lambda each: words[each.name][1],
    }
    return Table.from_items(kept, columns)


def queued(folder: Path) -> dict[str, str]:
    """In how many seconds of a run's test many requests waited, when, and the lowest load of a card meanwhile."""
    recording = Recording.read(folder / "Performance" / "machine.csv")
    cards = zip(*(recording.column(f"{gpu}_load_percent") for gpu in recording.gpus), strict=True)
    lines = list(zip(recording.seconds, recording.column("requests_waiting"), cards, strict=True))
    many = [(second, min(load or 0.0 for load in loads)) for second, waiting, loads in lines if (waiting or 0) > MANY]
    times, lowest = zip(*many, strict=True)
    found = {"seconds": len(many), "of": len(lines), "first": times[0], "last": times[-1], "load": min(lowest)}
    return {name: number(value, 3) for name, value in found.items()}


def submitted() -> Table:
    """What others published of an H100 with vLLM."""
    theirs = [point for name in SCENARIOS for point in points(name, CARD) if point.is_vllm]
    columns: dict[str, TableColumn[Published]] = {
        "published of an H100 with vLLM": lambda each: f"{each.scenario}, {each.submitter}, MLPerf {each.round}",
        "software": lambda each: each.software.partition(",")[0],
        "samples/s of a card": "samples_per_sec",
    }
    return Table.from_items(theirs, columns)


if __name__ == "__main__":
    write_text(PAGE, page() + "\n")
    print(PAGE)
