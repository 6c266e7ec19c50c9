"""Whose rows a page of metrics holds: those of this run's model count, and a line says what else is on it."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

from harness.core import word_list
from harness.engines.server_metrics import RANKS, SOURCES, parse_rows, with_plain_names

MODEL_LABELS = word_list.names_in("model_name served_model_name model model_id")
# Labels that tell the replicas of one model apart, or what a row is of: all of these rows are the model's own.
OWN_LABELS = frozenset(
    (
        *RANKS,
        *word_list.names_in(
            """
            engine engine_id engine_index engine_type dp_rank replica ReplicaId WorkerId NodeId Component pid le
            quantile finished_reason source position
            """
        ),
    )
)
MOST_NAMED_MODELS = 4  # models or values that a line names
LABEL = re.compile(r'([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"')


def own_rows(text: str, names: Collection[str]) -> str:
    """Return a page without the rows of models that are none of `names`, by which this run's model is known.

    Where no row is of one of them, the model goes by a name of its own on that page, and all rows are kept.
    """
    models = models_of(text.splitlines())
    other_models = {model for model in models if not is_one_of(model, names)}
    if not other_models or other_models == models:
        return text
    return "".join(f"{line}\n" for line in text.splitlines() if model_of(line) not in other_models)


def models_of(lines: Iterable[str]) -> set[str]:
    return set(filter(None, map(model_of, lines)))


def page_notes(text: str, names: Collection[str]) -> Iterator[str]:
    """Yield a line for what else than this run's rows a page holds: rows of other models, left out or counted, and
    rows that are told apart by a label which is not known to tell replicas apart.
    """
    lines = [line for line in with_plain_names(text).splitlines() if metric_name(line) in SOURCES]
    models = models_of(lines)
    other_models = sorted(model for model in models if not is_one_of(model, names))
    if other_models and len(other_models) < len(models):
        yield f"rows of other models on the page of metrics are left out: model_name {values_text(other_models)}"
    elif len(other_models) == 1:
        yield f"the page of metrics is of model_name {other_models[0]}, which may be another name of the model"
    for name, values in foreign_labels(own_rows("\n".join(lines), names)).items():
        yield f"rows on the page of metrics are counted together: {name} {values_text(sorted(values))}"


def foreign_labels(text: str) -> Mapping[str, set[str]]:
    """Return the labels, with their values, in which rows of one metric differ that are counted together."""
    groups: dict[tuple[str, frozenset[tuple[str, str]]], list[dict[str, str]]] = defaultdict(list)
    for sample in parse_rows(text, SOURCES):
        own_labels = frozenset(item for item in sample.labels.items() if item[0] in OWN_LABELS)
        foreign = {name: value for name, value in sample.labels.items() if name not in OWN_LABELS}
        groups[sample.name, own_labels].append(foreign)
    differing: dict[str, set[str]] = defaultdict(set)
    for rows in groups.values():
        for name in set[str]().union(*rows):
            values = {labels.get(name, "") for labels in rows}
            if len(values) > 1:
                differing[name] |= values
    return differing


def metric_name(line: str) -> str:
    return line.partition("{")[0].partition(" ")[0]


def model_of(line: str) -> str:
    """Return the model that a row names; empty for none."""
    if "{" not in line or line.startswith("#"):
        return ""
    labels = dict(LABEL.findall(line))
    return next((labels[name] for name in MODEL_LABELS if labels.get(name)), "")


def is_one_of(model: str, names: Collection[str]) -> bool:
    """Return whether a name of a model is one of `names`, whichever folder or owner stands before it."""
    return PurePath(model).name.lower() in {PurePath(name).name.lower() for name in names if name}


def values_text(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED_MODELS:,} more" if len(names) > MOST_NAMED_MODELS else ""
    return f"{', '.join(name or '(none)' for name in names[:MOST_NAMED_MODELS])}{more}"
