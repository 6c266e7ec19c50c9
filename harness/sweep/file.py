"""A sweep file (YAML) -> the experiments it asks for, checked whole before anything runs.

    about: what this sweep is for
    extends: other.yaml               # its baseline and experiments, which this file adds to or replaces
    baseline: {set: ..., engine: ..., env: ...}
    isolation: [{name, about, priority, set, engine, env}, ...]   # baseline plus this change
    stacked: [...]                                      # each adds to all before it
    grid: {set: {flag: [values]}, engine: ..., env: ...}  # every combination
    references: {name: output tokens/s}       # known from elsewhere, to hold the experiments against, or
                {name: published NVIDIA H200}  # the best published result per accelerator of this scenario

`set` holds run.py's settings, `engine` arguments of vLLM's engine, `env` environment variables; null takes one away.
"""

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.common.coerce import as_flag, did_you_mean
from harness.common.errors import UsageError, why
from harness.common.reading import MIB, load_yaml, read_text
from harness.common.secrets import is_secret
from harness.config.flags import setting
from harness.config.run import RunConfig
from harness.results import published

BASELINE = "baseline"
LARGEST_FILE = 4 * MIB
MOST_EXPERIMENTS = 1000
Kind = Literal["baseline", "isolation", "stacked", "grid", "combined"]
Part = Literal["set", "engine", "env"]
PARTS: tuple[Part, ...] = ("set", "engine", "env")
SWEEP_FLAGS = ("results_dir", "keep_all", "mlflow", "no_exit_on_accuracy_fail")  # the sweep's own business
NAME, LONGEST_NAME = r"^[A-Za-z0-9][A-Za-z0-9.,=_+-]*$", 100
RESERVED = {"best-combined", "plots", "report.md", "sweep.json", "status.json", "mlflow.json", BASELINE}
FIXED_FLAGS: dict[str, bool] = {"no_exit_on_accuracy_fail": True, "extra_metrics": True}
ValuesByName = dict[str, Any]
Parts = dict[Part, ValuesByName]
Lines = dict[tuple[str | int, ...], int]


@dataclass(frozen=True)
class Experiment:
    """One configuration to run. `settings` go into run.py's --config file, `env` into its environment.

    `changes` names in words what differs from the baseline, `engine` the arguments that vLLM's engine must know.
    """

    name: str
    about: str
    kind: Kind
    settings: ValuesByName
    engine: ValuesByName
    env: dict[str, str]
    changes: tuple[str, ...] = ()
    priority: int = 0  # under a time limit the higher go first


@dataclass(frozen=True)
class Sweep:
    """A whole sweep, the baseline first; `references` are output tokens/s known from elsewhere, by name."""

    name: str
    about: str
    experiments: tuple[Experiment, ...]
    references: dict[str, float] = field(default_factory=dict)


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Value = str | int | float | bool | None
Values = Annotated[list[Any], Field(min_length=1)]


class Settings(Strict):
    about: str = ""
    set: ValuesByName = {}
    engine: ValuesByName = {}
    env: dict[Variable, Value] = {}


class Change(Settings):
    name: str = Field(pattern=NAME, max_length=LONGEST_NAME)
    priority: int = 0


class Grid(Strict):
    set: dict[str, Values] = {}
    engine: dict[str, Values] = {}
    env: dict[Variable, Annotated[list[Value], Field(min_length=1)]] = {}

    @property
    def combinations(self) -> int:
        """How many experiments it makes."""
        return math.prod(len(values) for part in PARTS for values in getattr(self, part).values())


PublishedOn = Annotated[str, Field(pattern="^published .")]


class SweepFile(Strict):
    about: str = ""
    extends: str | None = None
    baseline: Settings = Settings()
    isolation: list[Change] = []
    stacked: list[Change] = []
    grid: Grid | None = None
    references: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)] | PublishedOn] = {}


@dataclass(frozen=True)
class Source:
    """A parsed file, and the line of everything in it."""

    path: Path
    content: SweepFile
    lines: Lines

    def at(self, *where: str | int) -> str:
        """`file:line` of the innermost place of `where` that the file has."""
        while where and where not in self.lines:
            where = where[:-1]
        return f"{self.path}:{self.lines.get(where, 1)}"


def load(path: Path) -> Sweep:
    """The sweep of a file. Raises UsageError that names every mistake with its line."""
    sources = list(chain(path))
    mistakes: list[str] = []
    baseline: Parts = {part: {} for part in PARTS}
    about: dict[str, str] = {"file": "", BASELINE: ""}
    changes: dict[str, tuple[Kind, Change, str]] = {}
    grid: tuple[Grid, str] | None = None
    references: dict[str, float] = {}
    for source in sources:
        content = source.content
        mistakes += misnamed_settings(source)
        baseline = merge_parts(baseline, content.baseline)
        about["file"] = content.about or about["file"]
        about[BASELINE] = content.baseline.about or about[BASELINE]
        seen: set[str] = set()
        for kind in ("isolation", "stacked"):
            for number, change in enumerate(getattr(content, kind)):
                if change.name in seen:
                    mistakes.append(f"{source.at(kind, number, 'name')}: a second experiment named {change.name!r}")
                seen.add(change.name)
                changes[change.name] = (kind, change, source.at(kind, number))  # type: ignore[assignment]
        if content.grid:
            grid = (content.grid, source.at("grid"))
        for name, value in content.references.items():
            try:
                references[name] = published.best_of(value, baseline["set"]) if isinstance(value, str) else value
            except UsageError as error:
                mistakes.append(f"{source.at('references', name)}: {error}")
    experiments = [(sources[-1].at("baseline"), experiment(BASELINE, about[BASELINE], "baseline", baseline, baseline))]
    stack = baseline
    for name, (kind, change, where) in changes.items():
        start = stack if kind == "stacked" else baseline
        made = experiment(name, change.about, kind, merge_parts(start, change), baseline)
        experiments.append((where, replace(made, priority=change.priority)))
        if kind == "stacked":
            stack = merge_parts(stack, change)
    if grid and (many := grid[0].combinations) > MOST_EXPERIMENTS:
        mistakes.append(f"{grid[1]}: {many:,} combinations; a sweep has at most {MOST_EXPERIMENTS:,}")
    elif grid:
        experiments += [(grid[1], item) for item in combinations(grid[0], baseline)]
    mistakes += rejected_settings(experiments)
    if len(experiments) == 1:
        mistakes.append(f"{path}:1: no experiments; add `isolation:`, `stacked:` or `grid:`")
    if mistakes:
        raise UsageError("\n".join(dict.fromkeys(mistakes)))
    return Sweep(path.stem, about["file"], tuple(item for _, item in experiments), references)


def rejected_settings(experiments: Sequence[tuple[str, Experiment]]) -> Iterator[str]:
    """What is wrong with experiments as a whole, each with where it stands: names, and values run.py would refuse."""
    names: set[str] = set()
    for where, item in experiments:
        if item.name in names and item.kind == "grid":
            yield f"{where}: a second experiment named {item.name!r}"
        if item.name in RESERVED and item.kind != "baseline":
            yield f"{where}: {item.name!r} is the name of something else in a sweep's folder: choose another"
        if not re.match(NAME, item.name) or len(item.name) > LONGEST_NAME:
            yield f"{where}: grid values make no name for a folder: {item.name[:80]!r}"
        names.add(item.name)
        try:
            config = RunConfig(**item.settings, given=frozenset(item.settings))
            if (
                config.scenario_rules.pattern.is_rated
                and config.mode != "accuracy"
                and config.server_target_qps == "auto"
            ):
                yield (
                    f"{where}: {item.name}: the speed of a Server test is its target rate: give server_target_qps, "
                    "as max (the highest rate that is VALID) or as one number for all, to compare TTFT and TPOT"
                )
        except UsageError as error:
            yield f"{where}: {item.name}: {error}"
            if item.name == BASELINE:
                break  # the others have the same
        except TypeError:
            pass  # an unknown setting, already among the mistakes


def chain(path: Path) -> Iterator[Source]:
    """The file and all it extends, the furthest first."""
    sources: list[Source] = []
    where = str(path)
    while True:
        if path.resolve() in [source.path.resolve() for source in sources]:
            raise UsageError(f"{where}: {path} extends itself.")
        sources.append(parse(path, where))
        last = sources[-1]
        if last.content.extends is None:
            return iter(sources[::-1])
        where, path = last.at("extends"), path.parent / last.content.extends


def parse(path: Path, where: str) -> Source:
    """One file. Raises UsageError; `where` is what asked for it."""
    try:
        text = read_text(path, LARGEST_FILE)
        parsed = load_yaml(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        lines: Lines = {}
        locate(root, (), lines)
        data = json.loads(json.dumps(parsed, default=str))  # what sweep.json can hold: no dates
    except OSError as error:
        raise UsageError(f"{where}: cannot read {path!s:.200}: {why(error)}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not text.") from None
    except (RecursionError, TypeError):
        raise UsageError(
            f"{path}:1: only plain values, please: a key that is no text, or an anchor within itself."
        ) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that is none, say
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        raise UsageError(f"{path}:{line}: not YAML: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(data, Mapping):
        raise UsageError(f"{path}:1: expected `baseline:` and lists of experiments.")
    try:
        return Source(path, SweepFile.model_validate(data), lines)
    except ValidationError as error:
        empty = Source(path, SweepFile(), lines)
        wrong = [f"{empty.at(*item['loc'])}: {explain(item)}" for item in error.errors()]
        raise UsageError("\n".join(wrong)) from None


def locate(node: Any, path: tuple[str | int, ...], lines: Lines) -> None:
    """Notes the line of every key and item below `node`."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            lines[*path, key.value] = key.start_mark.line + 1
            locate(value, (*path, key.value), lines)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            lines[*path, number] = value.start_mark.line + 1
            locate(value, (*path, number), lines)


def explain(item: Any) -> str:
    """A pydantic mistake as one line."""
    where = ".".join(str(part) for part in item["loc"])
    if item["type"] == "extra_forbidden":
        key = str(item["loc"][-1])
        keys = [name for kind in (SweepFile, Change) for name in kind.model_fields]
        return f"unknown key {key!r}{did_you_mean(key, keys)}"
    return f"{where}: {item['msg'][0].lower()}{item['msg'][1:]}"


def misnamed_settings(source: Source) -> Iterator[str]:
    """Settings that run.py does not have, or that are not a sweep's to set."""
    flags = [item.name for item in fields(RunConfig)]
    content = source.content
    groups: list[tuple[tuple[str | int, ...], Mapping[str, Any]]] = [(("baseline", "set"), content.baseline.set)]
    for kind in ("isolation", "stacked"):
        groups += [((kind, number, "set"), change.set) for number, change in enumerate(getattr(content, kind))]
    if content.grid:
        groups.append((("grid", "set"), content.grid.set))
    for where, settings in groups:
        around = [(*where[:-1], part) for part in ("engine", "env")]
        for path in source.lines:
            if path[: len(where)] in around and is_secret(str(path[-1])):
                yield f"{source.at(*path)}: no secrets in a sweep file: set {path[-1]} in the environment instead"
        for key in settings:
            name = setting(key)
            if name != key and name in settings:
                yield f"{source.at(*where, key)}: {name!r} is given twice"
            if name in SWEEP_FLAGS:
                yield f"{source.at(*where, key)}: {as_flag(name)} is set by the sweep itself"
            elif name == "engine_arg":
                yield f"{source.at(*where, key)}: write vLLM's arguments under `engine:`"
            elif name not in flags:
                yield f"{source.at(*where, key)}: unknown setting {key!r}{did_you_mean(name, flags)}"


def merge_parts(start: Parts, change: Settings) -> Parts:
    """`start` with the change's values on top; null takes a value away."""
    result: Parts = {}
    for part in PARTS:
        new = {setting(key) if part == "set" else key: value for key, value in getattr(change, part).items()}
        result[part] = {key: value for key, value in {**start[part], **new}.items() if value is not None}
    return result


def combinations(grid: Grid, baseline: Parts) -> Iterator[Experiment]:
    """Every combination of the grid's values, named after them."""
    axes = [(part, key, values) for part in PARTS for key, values in getattr(grid, part).items()]
    for chosen in itertools.product(*(values for _, _, values in axes)):
        change = Settings()
        words = []
        for (part, key, _), value in zip(axes, chosen, strict=True):
            getattr(change, part)[key] = value
            words.append(f"{key}-{value}")
        name = "+".join(words).replace("/", "_").replace(" ", "")
        yield experiment(name, "", "grid", merge_parts(baseline, change), baseline)


def experiment(name: str, about: str, kind: Kind, settings: Parts, baseline: Parts) -> Experiment:
    pairs = tuple(f"{key}={as_text(value)}" for key, value in settings["engine"].items())
    chosen = {**FIXED_FLAGS, **settings["set"], **({"engine_arg": list(pairs)} if pairs else {})}
    env = {key: as_text(value) for key, value in settings["env"].items()}
    return Experiment(name, about, kind, chosen, settings["engine"], env, tuple(differences(settings, baseline)))


def as_text(value: Any) -> str:
    """A value as it stands in KEY=VALUE."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def differences(settings: Parts, baseline: Parts) -> Iterator[str]:
    for part in PARTS:
        for key in {**baseline[part], **settings[part]}:
            if (value := settings[part].get(key)) != baseline[part].get(key):
                yield f"{key}={as_text(value)}" if value is not None else f"no {key}"
