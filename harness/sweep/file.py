"""A sweep file (YAML) -> the experiments it asks for, checked whole before anything runs.

    about: what this sweep is for
    extends: other.yaml               # its baseline and experiments, which this file adds to or replaces
    baseline: {set: ..., engine: ..., env: ...}
    isolation: [{name, about, group, priority, set, engine, env}, ...]   # baseline plus this change
    stacked: [...]                                      # each adds to all before it
    grid: {set: {flag: [values]}, engine: ..., env: ...}  # every combination

`set` holds run.py's settings, `engine` arguments of vLLM's engine, `env` environment variables; null takes one away.
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, Field, ValidationError

from harness.config.flags import setting
from harness.config.mlperf import SCENARIOS
from harness.config.run import RunConfig, scenario_of
from harness.core import files, given_values, secrets
from harness.core.errors import UsageError
from harness.core.file_limits import MIB
from harness.core.message_text import why
from harness.core.reading import as_text, load_yaml, read_text

BASELINE = "baseline"
LARGEST_SWEEP_FILE = 4 * MIB
MOST_EXPERIMENTS = 1000
ExperimentKind = Literal["baseline", "isolation", "stacked", "grid", "capped", "step"]
FilePart = Literal["set", "engine", "env"]
FILE_PARTS: tuple[FilePart, ...] = ("set", "engine", "env")
SWEEP_FLAGS = ("results_dir", "keep_all", "mlflow", "no_exit_on_accuracy_fail", "dry_run")  # the sweep's own business
CAPPED_KIND = "capped"  # made of the best estimate
NAME_PATTERN, LONGEST_EXPERIMENT_NAME = r"^[A-Za-z0-9][A-Za-z0-9.,=_+-]*$", 100
RESERVED = {CAPPED_KIND, "plots", "report.md", "sweep.json", "status.json", BASELINE}

ValuesByName = dict[str, Any]
SettingsByPart = dict[tuple[FilePart, str], Any]  # settings by the part of a file that they stand in, and their name
FilePlace = tuple[str | int, ...]  # in a file: the keys and numbers that lead there
LineNumbers = dict[FilePlace, int]


@dataclass(frozen=True)
class Experiment:
    """One configuration to run. `settings` go into run.py's --config file, `env` into its environment.

    `changes` names in words what differs from the baseline, `engine` the arguments that vLLM's engine must know.
    """

    name: str
    about: str
    kind: ExperimentKind
    settings: ValuesByName
    engine: ValuesByName
    env: dict[str, str]
    changes: tuple[str, ...] = ()
    priority: int = 0  # the higher go first
    group: str = ""  # a column of the table: the phase of the tuning, say
    python: str = ""  # the interpreter of another environment to run in

    @property
    def is_estimate(self) -> bool:
        """Tell whether it asks for an estimate of the rate within the limits, and for no test."""
        return bool(self.settings.get("quick"))

    @property
    def has_fixed_rate(self) -> bool:
        """Tell whether its speed follows from a configured rate, rather than from what the engine can do."""
        is_rated = SCENARIOS[scenario_of(self.settings)].pattern.is_rated
        return is_rated and self.settings.get("server_target_qps") != "max" and not self.is_estimate


@dataclass(frozen=True)
class Sweep:
    """A whole sweep, the baseline first."""

    name: str
    about: str
    experiments: tuple[Experiment, ...]

    @property
    def is_of_servers(self) -> bool:
        """Tell whether its experiments differ in the endpoint alone, so that a session with each does for all
        rounds.
        """
        settings = [item.settings | {"env": item.env} for item in self.experiments]
        addresses = [each.pop("endpoint", None) for each in settings]
        return all(addresses) and all(each == settings[0] | {"env": {}} for each in settings)


Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Value = str | int | float | bool | None
Choices = Annotated[list[Any], Field(min_length=1)]


class VariableValues(BaseModel, extra="forbid"):
    """The settings of a file, part by part."""

    set: Mapping[str, Any] = {}

    @property
    def settings(self) -> SettingsByPart:
        return {
            (part, setting(key) if part == "set" else key): value
            for part in FILE_PARTS
            for key, value in getattr(self, part).items()
        }


class FileSettings(VariableValues):
    about: str = ""
    set: ValuesByName = {}
    engine: ValuesByName = {}
    env: dict[Variable, Value] = {}


class Variant(FileSettings):
    name: str = Field(pattern=NAME_PATTERN, max_length=LONGEST_EXPERIMENT_NAME)
    priority: int = 0
    group: Annotated[str, Field(max_length=LONGEST_EXPERIMENT_NAME)] = ""


class Grid(VariableValues):
    set: dict[str, Choices] = {}
    engine: dict[str, Choices] = {}
    env: dict[Variable, Annotated[list[Value], Field(min_length=1)]] = {}


class SweepFile(BaseModel, extra="forbid"):
    about: str = ""
    extends: str | None = None
    baseline: FileSettings = FileSettings()
    isolation: list[Variant] = []
    stacked: list[Variant] = []
    grid: Grid | None = None


class Source(NamedTuple):
    """A parsed file, and the line of everything in it."""

    path: Path
    content: SweepFile
    lines: LineNumbers

    def at(self, *where: str | int) -> str:
        """`file:line` of the innermost place of `where` that the file has."""
        while where and where not in self.lines:
            where = where[:-1]
        return f"{self.path}:{self.lines.get(where, 1)}"

    @property
    def changes(self) -> list[tuple[tuple[ExperimentKind, int], Variant]]:
        """The experiments that are named, each with its place."""
        kinds: tuple[ExperimentKind, ...] = ("isolation", "stacked")
        return [((kind, n), each) for kind in kinds for n, each in enumerate(getattr(self.content, kind))]


def load(path: Path) -> Sweep:
    """The sweep of a file. Raises UsageError that names every mistake with its line."""
    return merged(list(chain(path)))


def merged(sources: Sequence[Source]) -> Sweep:
    """The sweep of a file, the last, and of those that it extends. Raises UsageError."""
    path = sources[-1].path
    contents = [source.content for source in sources]
    mistakes = [mistake for source in sources for mistake in misnamed_settings(source)]
    baseline = reduce(changed, (content.baseline.settings for content in contents), SettingsByPart())
    about = last(content.baseline.about for content in contents)
    named = {
        change.name: (source.at(*at), at[0], change, change.settings)
        for source in sources
        for at, change in source.changes
    }
    items: list[tuple[str, ExperimentKind, Variant, SettingsByPart]] = [
        (sources[-1].at("baseline"), "baseline", Variant(name=BASELINE, about=about), {}),
        *named.values(),
    ]
    grids = [(source.content.grid.settings, source.at("grid")) for source in sources if source.content.grid]
    for axes, where in grids[-1:]:
        if (count := math.prod(map(len, axes.values()))) > MOST_EXPERIMENTS:
            mistakes.append(f"{where}: {count:,} combinations; a sweep has at most {MOST_EXPERIMENTS:,}")
        else:
            items += [(where, "grid", *each) for each in combinations(axes)]
    experiments, stack = list[tuple[str, Experiment]](), baseline
    for where, kind, about_it, change in items:
        settings = changed(stack if kind == "stacked" else baseline, change)
        stack = settings if kind == "stacked" else stack
        experiments.append((where, make_experiment(about_it, kind, settings, baseline)))
    mistakes += rejected_settings(experiments)
    if len(experiments) == 1:
        mistakes.append(f"{path}:1: no experiments; add `isolation:`, `stacked:` or `grid:`")
    if mistakes:
        raise UsageError("\n".join(dict.fromkeys(mistakes)))
    return Sweep(path.stem, last(content.about for content in contents), tuple(i for _, i in experiments))


def last(texts: Iterator[str]) -> str:
    """The last that says anything."""
    return next(filter(None, reversed(list(texts))), "")


def rejected_settings(experiments: Sequence[tuple[str, Experiment]]) -> Iterator[str]:
    """Yield what is wrong with experiments as a whole, each with where it stands: names, and values run.py would
    refuse.
    """
    names = set[str]()
    for where, item in experiments:
        if item.name in names and item.kind == "grid":
            yield f"{where}: a second experiment named {item.name!r}"
        if item.name in RESERVED and item.kind != "baseline":
            yield f"{where}: {item.name!r} is reserved: choose another name"
        if not re.match(NAME_PATTERN, item.name) or len(item.name) > LONGEST_EXPERIMENT_NAME:
            yield f"{where}: the grid's values do not form a folder name: {item.name[:80]!r}"
        names.add(item.name)
        if not item.settings.keys() <= RunConfig.model_fields.keys():
            continue  # already among the mistakes
        try:
            config = RunConfig(**item.settings)
            if (
                config.scenario_rules.pattern.is_rated
                and config.mode != "accuracy"
                and config.server_target_qps == "auto"
                and not config.quick
            ):
                yield (
                    f"{where}: {item.name}: the speed of a Server test is its target rate: give server_target_qps, "
                    "as max (the highest rate that is VALID) or as one number for all, to compare TTFT and TPOT"
                )
        except UsageError as error:
            yield f"{where}: {item.name}: {error}"
            if item.name == BASELINE:
                break  # the others have the same


def chain(path: Path, where: str = "", below: tuple[Path, ...] = ()) -> Iterator[Source]:
    """The file and all it extends, the furthest first. `where` asks for it, and the files `below` extend it."""
    if path.resolve() in below:
        raise UsageError(f"{where}: {path} extends itself.")
    source = parse(path, where)
    if source.content.extends is not None:
        yield from chain(path.parent / source.content.extends, source.at("extends"), (*below, path.resolve()))
    yield source


def parse(path: Path, where: str) -> Source:
    """One file. Raises UsageError; `where` is what asked for it, if a file did."""
    try:
        text = read_text(path, LARGEST_SWEEP_FILE)
        data = files.as_json(load_yaml(text))  # sweep.json cannot hold dates
        lines = dict(places(yaml.compose(text, Loader=yaml.SafeLoader)))
    except OSError as error:
        name = f"{path!s:.200}"
        raise UsageError(f"{where}: cannot read {name}: {why(error)}." if where else f"{name}: {why(error)}.") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise UsageError(
            f"{path}:{mark.line + 1 if mark else 1}: not YAML: {getattr(error, 'problem', None) or error}"
        ) from None
    if not isinstance(data, Mapping):
        raise UsageError(f"{path}:1: expected `baseline:` and lists of experiments.")
    try:
        return Source(path, SweepFile.model_validate(data), lines)
    except ValidationError as error:
        empty = Source(path, SweepFile(), lines)
        raise UsageError("\n".join(f"{empty.at(*item['loc'])}: {explain(item)}" for item in error.errors())) from None


def places(node: Any, path: FilePlace = ()) -> Iterator[tuple[FilePlace, int]]:
    """Every key and item below `node`, with its line."""
    if isinstance(node, yaml.MappingNode):
        found = [(key.value, key, value) for key, value in node.value]
    else:
        found = [(n, value, value) for n, value in enumerate(node.value if isinstance(node, yaml.SequenceNode) else ())]
    for name, at, value in found:
        yield (*path, name), at.start_mark.line + 1
        yield from places(value, (*path, name))


def explain(item: Any) -> str:
    """A pydantic mistake as one line."""
    if item["type"] == "extra_forbidden":
        key = str(item["loc"][-1])
        keys = (SweepFile if len(item["loc"]) == 1 else Variant).model_fields
        return f"unknown key {key!r}{given_values.did_you_mean(key, [*keys])}"
    return f"{'.'.join(map(str, item['loc']))}: {item['msg'][0].lower()}{item['msg'][1:]}"


def misnamed_settings(source: Source) -> Iterator[str]:  # noqa: C901
    """Names that are given twice, secrets, and settings that run.py does not have, or that are not a sweep's to set."""
    flags = list(RunConfig.model_fields)
    sections: dict[FilePlace, VariableValues] = {("baseline",): source.content.baseline, **dict(source.changes)}
    if grid := source.content.grid:
        sections["grid",] = grid
    names = list[str]()
    for path in source.lines:
        if {"engine", "env"} & {*path[:-1]} and secrets.is_secret(str(path[-1])):
            yield f"{source.at(*path)}: no secrets in a sweep file: set {path[-1]} in the environment instead"
    for where, section in sections.items():
        for key in section.set:
            name, at = setting(key), source.at(*where, "set", key)
            if name != key and name in section.set:
                yield f"{at}: {name!r} is given twice"
            if name in SWEEP_FLAGS:
                yield f"{at}: {given_values.as_flag(name)} is set by the sweep itself"
            elif name == "engine_arg":
                yield f"{at}: write vLLM's arguments under `engine:`"
            elif name not in flags:
                yield f"{at}: {given_values.unknown_setting(key, flags)}"
        if isinstance(section, Variant):
            if section.name in names:
                yield f"{source.at(*where, 'name')}: a second experiment named {section.name!r}"
            names.append(section.name)


def changed(start: SettingsByPart, change: SettingsByPart) -> SettingsByPart:
    """`start` with the change's values on top; null takes a value away."""
    return {at: value for at, value in (start | change).items() if value is not None}


def combinations(axes: SettingsByPart) -> Iterator[tuple[Variant, SettingsByPart]]:
    """Each choice of one value of every axis, with its name."""
    for values in itertools.product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        name = "+".join(f"{key}-{value}" for (_, key), value in chosen.items())
        yield Variant.model_construct(name=name.replace("/", "_").replace(" ", "")), chosen


def make_experiment(
    named: Variant, kind: ExperimentKind, settings: SettingsByPart, baseline: SettingsByPart
) -> Experiment:
    """An experiment of these settings; `named`: what else its file says of it."""
    flags, engine, env = ({key: value for (at, key), value in settings.items() if at == part} for part in FILE_PARTS)
    pairs = [f"{key}={as_text(value)}" for key, value in engine.items()]
    texts = {key: as_text(value) for key, value in env.items()}
    chosen = (
        {"no_exit_on_accuracy_fail": True, "extra_metrics": True} | flags | ({"engine_arg": pairs} if pairs else {})
    )
    changes = tuple(
        f"{at[1]}={as_text(settings[at])}" if at in settings else f"no {at[1]}"
        for at in sorted(baseline | settings, key=lambda at: FILE_PARTS.index(at[0]))
        if settings.get(at) != baseline.get(at)
    )
    return Experiment(named.name, named.about, kind, chosen, engine, texts, changes, named.priority, named.group)
