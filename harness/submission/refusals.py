"""What speaks against an entry: reasons that keep it out of a closed submission, and what the checker would refuse."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import util_logs
from harness import rules
from harness.results import read_json
from harness.submission.entries import BENCHMARK, SCENARIO, Entry, Run

# The scenarios a closed submission must cover: each of these sets needs one of its own.
REQUIRED = {
    "datacenter": ({"offline"}, {"server", "interactive"}),
    "edge": ({"offline"}, {"singlestream"}),
}


def closed(entries: Sequence[Entry]) -> list[str]:
    """Why these entries cannot go into a closed submission; empty when they can."""
    reasons = [
        f"{entry.benchmark} {entry.scenario}: {reason}"
        for entry in entries
        for reason in dict.fromkeys([*settings(entry), *accuracy(entry), *performance(entry), *test06(entry)])
    ]
    for category, sets in REQUIRED.items():
        run = {entry.config["scenario"] for entry in entries if entry.category == category}
        if run:
            reasons += [
                f"{BENCHMARK[category]}: {' or '.join(SCENARIO[name] for name in sorted(choice))} is missing"
                for choice in sets
                if not run & choice
            ]
    return reasons


def settings(entry: Entry) -> Iterator[str]:
    for run in entry.runs:
        yield from run.facts["shortcomings"]
        if Path(run.config["model"]).resolve() == Path(rules.MODELS["demo"].path):
            yield "the demo model"


def accuracy(entry: Entry) -> Iterator[str]:
    rouge = read_json(entry.accuracy.folder("accuracy") / "rouge.json")
    if rouge["verdict"] != "PASS":
        yield f"the accuracy gate says {rouge['verdict']}"
    if rouge["approximate"]:
        yield "ROUGE-Lsum and gen_len are approximate: NLTK's punkt_tab was missing (`make punkt`, then run again)"
    yield from logged(entry.accuracy, entry.accuracy.folder("accuracy"))


def performance(entry: Entry) -> Iterator[str]:
    folder = entry.performance.folder("performance")
    if not util_logs.read(folder).valid:
        yield "LoadGen calls the performance run INVALID"
    yield from logged(entry.performance, folder)


def logged(run: Run, folder: Path) -> Iterator[str]:
    """What LoadGen's own log says against a test."""
    facts = util_logs.read(folder)
    seeds = rules.SEEDS[run.config["version"]]
    if facts.seeds != vars(seeds):
        yield f"seeds other than those of v{run.config['version']}"
    yield from (f"LoadGen error: {error}" for error in facts.errors)


def test06(entry: Entry) -> Iterator[str]:
    """The official checker asks for TEST06 of the datacenter benchmark only."""
    if entry.category != "datacenter":
        return
    if entry.test06 is None:
        yield "no TEST06 (run it with --compliance test06)"
    elif not read_json(entry.test06.folder("test06") / "result.json").get("passed"):
        yield "TEST06 failed"


def unlike_official(entries: Sequence[Entry]) -> list[str]:
    """What the official checker refuses in any division."""
    return list(dict.fromkeys(reason for entry in entries for reason in lacking(entry)))


def lacking(entry: Entry) -> Iterator[str]:
    label = f"{entry.benchmark} {entry.scenario}"
    official = rules.OFFICIAL[entry.category].samples
    answered = util_logs.read(entry.accuracy.folder("accuracy")).effective.get("accuracy_sample_count", 0)
    facts = util_logs.read(entry.performance.folder("performance"))
    if answered != official:
        yield f"{label}: {answered:,} samples in the accuracy test; the checker asks for {official:,}"
    if facts.effective.get("performance_sample_count", 0) < official:
        yield f"{label}: a set of fewer than {official:,} samples in the performance test"
    if facts.effective.get("min_duration_ms", 0) < 1000 * rules.MIN_DURATION_S:
        yield f"{label}: a minimum duration below {rules.MIN_DURATION_S:g} s"
    if facts.seeds != vars(rules.SEEDS[entry.version]):
        yield f"{label}: seeds other than those of v{entry.version}"
    if facts.early_stopping.get("early_stopping_met") is False:
        yield f"{label}: too few queries for its percentile (early stopping)"
