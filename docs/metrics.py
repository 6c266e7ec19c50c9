"""Writes docs/reference/metrics.md: every metric as `METRICS` declares it, with what its field in the summary says
of it.

python -m docs.metrics
"""

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from harness.core.files import write_text
from harness.results.metrics import METRICS, Metric
from harness.results.summary import Summary

PAGE = Path(__file__).parent / "reference" / Path(__file__).with_suffix(".md").name
HEAD = """# Metrics

Made by `python -m docs.metrics` from `METRICS` in `harness/results/metrics.py` and the fields' own descriptions in
`harness/results/summary.py`; not written by hand. *Name* is the column of `--csv`, the key in MLflow and the metric of
[`--fail-if`](../regression.md); *in summary.json* is the path to the value, absent or null where a run has none.
Terms are
in the [glossary](glossary.md).

**Whose count of tokens is the result.** Where a server gives token ids, those that came are counted. Where it gives
text alone, its own count (`usage`) is, answer by answer; an answer without one is encoded with the model's tokenizer.
LoadGen is given that count, so its tokens/s and TPOT follow from it. `disagreements` of the performance test names a
difference of more than 2 % between the server's count and ours, whichever is the result.

**TPOT.** LoadGen divides the time after the first token by the tokens but one. At fixed concurrency and with custom
arrivals, where times are this program's, it is the time after the first message over the tokens that came after it: a
message may hold several. Where half of the answers come in fewer than half as many messages as tokens, or with half
of their tokens in the first, both are called those of the buffering, and SLO attainment, goodput and tokens/s per user
are left out.

| name | label | in summary.json | better | meaning |
|---|---|---|---|---|
"""
TELEMETRY = ".usage."
TELEMETRY_HEAD = """
## Telemetry

Recorded once a second with `--extra-metrics` ([how to read it](../telemetry.md)), as mean and maximum over the
performance
test. Neither direction is better by itself.

| name | label | in summary.json |
|---|---|---|
"""


def page() -> str:
    """The whole page, in Markdown."""
    sampled = [metric for metric in METRICS if TELEMETRY in metric.path]
    plain = [metric for metric in METRICS if metric not in sampled]
    telemetry = TELEMETRY_HEAD + "".join(f"| `{item.name}` | {item.label} | `{item.path}` |\n" for item in sampled)
    return HEAD + "".join(f"{table_line(metric)}\n" for metric in plain) + telemetry


def table_line(metric: Metric) -> str:
    cells = (f"`{metric.name}`", metric.label, f"`{metric.path}`", metric.better or "–", meaning(metric))
    return f"| {' | '.join(cells)} |"


def meaning(metric: Metric) -> str:
    """The description that is nearest to the value: of its field, or else of what the field belongs to."""
    found = [text for text in descriptions(Summary, metric.path.split(".")) if text]
    parts = [" ".join(found[-1].split()).replace("|", "\\|") if found else ""]
    if metric.streaming:
        parts.append("Streaming scenarios only.")
    if metric.in_process:
        parts.append("vLLM in this process only.")
    return " ".join(part for part in parts if part)


def descriptions(kind: type, steps: list[str]) -> Iterator[str | None]:
    """Of each step of a path below a type, the outermost first. Raises KeyError for a path that leads nowhere."""
    if not steps:
        return
    name, *rest = steps
    if get_origin(kind) is dict:
        text, below = None, get_args(kind)[1]
    elif is_dataclass(kind):
        text, below = None, kind.__annotations__[name]
    else:
        assert issubclass(kind, BaseModel)
        field: Any = kind.model_fields.get(name) or kind.model_computed_fields[name]
        text, below = field.description, getattr(field, "annotation", None) or field.return_type
    yield text
    yield from descriptions(bare(below), rest)


def bare(kind: Any) -> Any:
    """A type without None and annotations."""
    if isinstance(get_origin(kind), type) and issubclass(get_origin(kind), Mapping):
        return kind
    kinds = [bare(part) for part in get_args(kind) if part is not type(None) and hasattr(part, "__name__")]
    return kinds[0] if kinds else kind


def main() -> None:
    write_text(PAGE, page())
    print(PAGE)


if __name__ == "__main__":
    main()
