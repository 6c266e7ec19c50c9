"""The models of the rows on a page of metrics: those of this run's model count, and a note says what else is on it."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

from harness.core import word_list
from harness.core.formatting import first_of
from harness.engines.server_metrics import RANKS, SOURCES, page_with_vllm_names, parse_rows

MODEL_LABELS = word_list.names_in("model_name served_model_name model model_id")
# Labels that distinguish replicas of one model, or say what a row counts. Rows that differ only in these labels all
# belong to the model.
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
MOST_NAMED_MODELS = 4  # models, or values of a label, that a note names
LABEL = re.compile(r'([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"')


def own_rows(text: str, names: Collection[str]) -> str:
    """Return a page of metrics without the rows of other models. `names` are the names of this run's model."""
    lines = text.splitlines()
    models = models_of(lines)
    other_models = {model for model in models if not is_one_of(model, names)}
    if not other_models or other_models == models:  # The page may have another name for this model.
        return text
    own_lines = [line for line in lines if model_of(line) not in other_models]
    return "\n".join([*own_lines, ""])


def models_of(lines: Iterable[str]) -> set[str]:
    """Return the models that rows of a page of metrics name, each once."""
    return set(filter(None, map(model_of, lines)))


def page_notes(text: str, names: Collection[str]) -> Iterator[str]:
    """Yield a note for each kind of rows on a page of metrics that may not be this run's own.

    `names` are the names of this run's model.
    """
    lines = [line for line in page_with_vllm_names(text).splitlines() if metric_name(line) in SOURCES]
    models = models_of(lines)
    other_models = sorted(model for model in models if not is_one_of(model, names))
    has_own_model = len(other_models) < len(models)
    if other_models and has_own_model:
        yield f"rows of other models on the page of metrics are left out: model_name {values_text(other_models)}"
    elif len(other_models) == 1:  # If there are several, all are counted together: the last note says so.
        yield f"the page of metrics is of model_name {other_models[0]}, which may be another name of the model"
    own_page = own_rows("\n".join(lines), names)
    # Rows that differ in another label than OWN_LABELS are counted together, but may not stand for replicas.
    for name, values in differing_labels(own_page).items():
        yield f"rows on the page of metrics are counted together: {name} {values_text(sorted(values))}"


def differing_labels(text: str) -> Mapping[str, set[str]]:
    """Return by which labels rows that are counted together differ, and the values of each of these labels.

    A row without a label counts as one with an empty value.
    """
    several_values: dict[str, set[str]] = defaultdict(set)
    for rows in rows_counted_together(text):
        for name in set[str]().union(*rows):
            values = {labels.get(name, "") for labels in rows}
            if len(values) > 1:
                several_values[name] |= values
    return several_values


def rows_counted_together(text: str) -> Iterable[list[dict[str, str]]]:
    """Return the groups of rows that elsewhere are added up to one value: those of one metric that share OWN_LABELS.

    A row is returned as its other labels, by which it may be of something else than the rest of its group.
    """
    groups: dict[tuple[str, frozenset[tuple[str, str]]], list[dict[str, str]]] = defaultdict(list)
    for sample in parse_rows(text, SOURCES):
        own_labels, other_labels = set[tuple[str, str]](), dict[str, str]()
        for name, value in sample.labels.items():
            if name in OWN_LABELS:
                own_labels.add((name, value))
            else:
                other_labels[name] = value
        groups[sample.name, frozenset(own_labels)].append(other_labels)
    return groups.values()


def metric_name(line: str) -> str:
    """Return the name of the metric in a row, which ends at its labels or, without labels, at a space."""
    return line.partition("{")[0].partition(" ")[0]


def model_of(line: str) -> str:
    """Return the model that a row of a page of metrics names in a label. Empty for a comment, or a row without one."""
    if "{" not in line or line.startswith("#"):
        return ""
    labels = dict(LABEL.findall(line))
    for name in MODEL_LABELS:
        if labels.get(name):
            return str(labels[name])
    return ""


def is_one_of(model: str, names: Collection[str]) -> bool:
    """Return whether a model's name is one of `names`. Only the last part of a name counts, without regard to case.

    So "owner/NAME" and "/folder/name" are the same model.
    """
    return base_name(model) in [base_name(name) for name in names if name]


def base_name(model: str) -> str:
    return PurePath(model).name.lower()


def values_text(values: Sequence[str]) -> str:
    """Return the first MOST_NAMED_MODELS values in one line, and how many more there are. An empty one is "(none)"."""
    return first_of([value or "(none)" for value in values], MOST_NAMED_MODELS)
