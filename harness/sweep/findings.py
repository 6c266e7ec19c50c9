"""What a sweep found, the answer first: which change helped, which hurt, which must not be used."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean

from harness.common.coerce import as_flag
from harness.common.markdown import number
from harness.common.schema import gpu_names
from harness.config import mlperf
from harness.config.models import DEFAULT_MODEL
from harness.reporting import answer
from harness.sweep.file import BASELINE
from harness.sweep.lanes import SHARING_NOTE
from harness.sweep.rows import BRIEF_S, SCORE, Effect, ExperimentResult, Paired, State, gain, has_fixed_rate, unlike
from harness.terminal.last_screen import LastScreen, Line, Tone
from harness.terminal.progress import clock

EFFECTS: dict[Effect, tuple[str, str, Tone]] = {  # the label of a line, what it says after the names, and its tone
    "helped": ("helped", "", "good"),
    "no difference": ("no difference", "", ""),
    "hurt": ("hurt", "", "bad"),
    "unclear": ("unclear", ": more rounds would tell", "unknown"),
    "busy machine": ("careful", ": other programs used the machine, so the speeds cannot be compared", "careful"),
    "too short": ("too short", f": tests under {BRIEF_S:g} s are not compared", "unknown"),
}


@dataclass(frozen=True)
class Report:
    state: State
    rows: tuple[ExperimentResult, ...]  # of experiments that were begun or skipped
    finals: tuple[ExperimentResult, ...] = ()  # of those that ran again at full length
    paired: Mapping[str, Paired] = field(default_factory=dict)  # scores against the baseline's, sample by sample

    def result(self, name: str) -> ExperimentResult | None:
        return next((result for result in self.rows if result.name == name), None)

    @cached_property
    def baseline(self) -> ExperimentResult | None:
        return self.result(BASELINE)

    @property
    def is_timed(self) -> bool:
        """Whether any experiment measured a speed."""
        return any(result.speeds for result in self.rows)

    @property
    def judged(self) -> list[ExperimentResult]:
        """The changes whose speed was compared with the baseline's, the fastest first."""
        return sorted((r for r in self.rows if r.effect != "unknown" and r.is_usable), key=gain, reverse=True)


def last_screen(report: Report) -> LastScreen:
    """The finding of a sweep, and what must be known of it."""
    found = list(lines(report))
    tone: Tone = "good" if any(line.label == "helped" for line in found) else ""
    return LastScreen(title(report, found), subject(report), found, tone=tone)


def title(report: Report, found: Sequence[Line]) -> str:
    base, best = report.baseline, next((r for r in report.judged if r.effect == "helped"), None)
    if base is None or not base.complete:
        return "the baseline did not complete, so no speedup can be given"
    if report.is_timed and not base.is_usable:
        return "the baseline has no valid throughput, so no speedup can be given"
    if report.is_timed and has_fixed_rate(base.experiment):
        return "every experiment was sent the same rate: compare TTFT and TPOT, not speeds"
    if not report.is_timed:
        lost = [result.name for result in report.rows if result.accuracy == "UNSAFE"]
        return f"{' and '.join(lost)} lost accuracy" if lost else "accuracy is all that was measured"
    if best:
        percent = number(100 * (gain(best) - 1), 3)
        return f"{best.name} helped: {percent} % faster ({speed(best)}; baseline {number(base.speed)})"
    labels = dict.fromkeys(line.label for line in found if line.label in {label for label, *_ in EFFECTS.values()})
    if [*labels] == ["careful"]:
        return "the speeds cannot be compared: other programs used the machine"
    return f"no change helped: {', '.join(labels)}" if labels else "no change was measured"


def subject(report: Report) -> str:
    state = report.state
    settings = state.sweep.experiments[0].settings
    model = answer.model_name(str(settings.get("model", DEFAULT_MODEL)))
    machine = gpu_names(state.system.gpus) if state.system.gpus else f"{state.system.cores} CPU cores"
    seconds = sum(record.seconds for record in state.records)
    size = f"{len(state.experiments)} experiments in {clock(seconds)}"
    backend = str(settings.get("backend", "auto"))
    engine = f"vLLM {state.system.vllm_version or 'unknown'}" if backend in ("auto", "vllm") else backend
    return f'Sweep "{state.sweep.name}", {size}, {model}, {machine}, {engine}'


def lines(report: Report) -> Iterator[Line]:
    """What helped, what hurt, what is unsafe: sentences that follow from the numbers."""
    for effect, (label, said, tone) in EFFECTS.items():
        if some := [f"{result.name} {spread(result)}" for result in report.judged if result.effect == effect]:
            yield Line(label, f"{', '.join(some)}{said}", tone)
    yield from accuracy(report)
    base = report.baseline
    for result in report.rows:
        other = (
            [as_flag(e.name) for e in unlike(result.experiment, base.experiment) if e.aspect == "work"] if base else []
        )
        if result.speed and other:
            yield Line("not compared", f"{result.name}: its work is not the baseline's ({', '.join(other)})", "careful")
    if invalid := [result.name for result in report.rows if result.is_valid is False]:
        yield Line("INVALID", f"{', '.join(invalid)}, by LoadGen: no valid speed", "bad")
    stack = [r for r in report.rows if r.ratio and (r.experiment.kind == "stacked" or r.name == BASELINE)]
    if len(stack) > 1:
        steps = (f"{r.name} {number(r.speed)}{'' if r.is_usable else ' (not usable)'}" for r in stack)
        yield Line("stacked", f"{' → '.join(steps)} output tokens/s")
    yield from references(report)
    if full := [result for result in report.finals if result.is_usable and result.speed]:
        best = max(full, key=lambda result: result.speed or 0)
        of = f" is the fastest of {len(full)}" if len(full) > 1 else ""
        yield Line("full length", f"{best.name}{of}: {speed(best)}", "good")
    if base is not None and any(record.gpu for record in base.records):
        yield Line("careful", SHARING_NOTE + cards(base), "careful")
    for result in report.rows:
        if result.trouble:
            status, _, reason = result.trouble.partition(": ")
            yield Line(status, f"{result.name}: {reason}", "bad" if status == "failed" else "unknown")
    if report.state.note:
        yield Line("careful", report.state.note, "careful")


def accuracy(report: Report) -> Iterator[Line]:
    base = report.baseline
    safe = [result.name for result in report.rows if result.accuracy == "SAFE"]
    if safe and not report.is_timed:
        yield Line("safe", ", ".join(safe), "good")
    if unsafe := [f"{result.name} ({loss(result, base)})" for result in report.rows if result.accuracy == "UNSAFE"]:
        yield Line("unsafe", ", ".join(unsafe) + (", whatever the speed" if report.is_timed else ""), "bad")
    tones: dict[str, Tone] = {"holds": "good", "lost": "bad"}
    for verdict, tone in tones.items():
        if judged := [f"{name} ({each.text})" for name, each in report.paired.items() if each.verdict == verdict]:
            yield Line("accuracy", "; ".join(judged), tone)
    clear = {name for name, each in report.paired.items() if each.verdict != "not clear"}
    if unsure := [r.name for r in report.judged if r.accuracy != "SAFE" and r.name not in clear]:
        yield Line("accuracy", f"not shown to hold: {', '.join(unsure)}", "unknown")


def references(report: Report) -> Iterator[Line]:
    """The fastest experiment whose speed counts, compared with speeds known from elsewhere."""
    counts = [result for result in report.rows if result.is_counted]
    fastest, best = max(((result.speed, result.name) for result in counts if result.speed), default=(0.0, ""))
    for name, other in report.state.sweep.references.items():
        if best:
            yield Line(
                "reference", f"{best} ({number(fastest)} output tokens/s) has {fastest / other:.3f} times {name}"
            )


def cards(base: ExperimentResult) -> str:
    """The baseline's speed on each GPU, so that one sees how far the cards differ."""
    by_gpu: dict[str, list[float]] = {}
    for (_, gpu), each in base.speeds.items():
        by_gpu.setdefault(gpu, []).append(each)
    found = [f"GPU {gpu} {number(mean(speeds))}" for gpu, speeds in sorted(by_gpu.items())]
    return f" The baselines: {', '.join(found)} output tokens/s." if len(found) > 1 else ""


def speed(result: ExperimentResult) -> str:
    return f"{number(result.speed)} output tokens/s"


def change(ratio: float) -> str:
    """A ratio as people say it: +12.3 %."""
    return f"{100 * (ratio - 1):+.1f} %"


def spread(result: ExperimentResult) -> str:
    """The change of an experiment, with its range where it was repeated."""
    if result.ratio is None:
        return "–"
    ratio = result.ratio
    if ratio.interval:
        low, high = map(change, ratio.interval)
        return f"{change(ratio.mean)} (95 % interval {low} to {high})"
    return change(ratio.mean) + (f" ({change(ratio.low)} to {change(ratio.high)})" if ratio.rounds > 1 else "")


def loss(result: ExperimentResult, base: ExperimentResult | None) -> str:
    """How far a score lies below the baseline's."""
    lost, start = result.score, base.score if base else None
    if lost is None or start is None or result is base:
        return "the gate fails"
    return f"{mlperf.SCORES[SCORE]} {number(lost)}, {lost - start:+.2f} against the baseline"
