"""A sweep file (YAML) -> the experiments it asks for, checked whole before anything runs.

    about: what this sweep is for
    extends: other.yaml               # a file whose baseline and experiments this file adds to or replaces
    baseline: {set: ..., engine: ..., env: ...}
    isolation: [{name, about, group, priority, set, engine, env}, ...]   # baseline plus this change
    stacked: [...]                                      # each adds to all before it
    grid: {set: {flag: [values]}, engine: ..., env: ...}  # every combination

`set` holds run.py's settings, `engine` arguments of vLLM's engine, `env` environment variables. The value null takes
one of them away.
"""

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from harness.config.flags import setting
from harness.config.mlperf import SCENARIOS
from harness.config.run import RunConfig, label_problems, scenario_of
from harness.core import files, given_values, secrets
from harness.core.errors import UsageError
from harness.core.file_limits import MIB
from harness.core.message_text import system_reason
from harness.core.reading import load_yaml, read_text, setting_text
from harness.core.shipped_files import user_or_shipped_file
from harness.core.value_mistakes import refusal_text

BASELINE = "baseline"
VERDICTS_FILE = "verdicts.json"  # the verdicts of each --fail-if, for scripts
LARGEST_SWEEP_FILE = 4 * MIB
MOST_EXPERIMENTS = 1000
ExperimentKind = Literal["baseline", "isolation", "stacked", "grid", "capped", "step"]
FilePart = Literal["set", "engine", "env"]
FILE_PARTS: tuple[FilePart, ...] = ("set", "engine", "env")
# Settings that the sweep itself decides about, so a file must not give them.
SWEEP_FLAGS = ("results_dir", "keep_all", "mlflow", "no_exit_on_accuracy_fail", "dry_run", "json")
CAPPED_KIND = "capped"  # the name and kind of the experiment that is made of the best estimate
NAME_PATTERN, LONGEST_EXPERIMENT_NAME = r"^[A-Za-z0-9][A-Za-z0-9.,=_+-]*$", 100
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
PATTERN_WORDS = {
    NAME_PATTERN: "letters (A to Z), digits and . , = _ + -, with a letter or digit first",
    VARIABLE_PATTERN: "letters (A to Z), digits and _, with no digit first",
}
RESERVED_NAMES = {CAPPED_KIND, "plots", "report.md", "sweep.json", "status.json", VERDICTS_FILE, BASELINE}

ValuesByName = dict[str, Any]
SettingsByPart = dict[tuple[FilePart, str], Any]  # settings by the part of a file that they stand in, and their name
FilePlace = tuple[str | int, ...]  # a place in a file: the keys and list indexes that lead there
LineNumbers = dict[FilePlace, int]


@dataclass(frozen=True)
class Experiment:
    """One configuration to run."""

    name: str
    about: str
    kind: ExperimentKind
    settings: ValuesByName  # run.py's settings, which go into its --config file; they include the engine's arguments
    engine: ValuesByName  # the arguments of vLLM's engine alone
    env: dict[str, str]
    changes: tuple[str, ...] = ()  # the differences from the baseline, in words
    priority: int = 0  # experiments with a higher priority run first
    group: str = ""  # a column of the table, such as the phase of the tuning
    python: str = ""  # the interpreter of another environment to run in

    @property
    def is_estimate(self) -> bool:
        """Tell whether the experiment asks only for an estimate of the rate within the limits, not for a full test."""
        return bool(self.settings.get("quick"))

    @property
    def has_fixed_rate(self) -> bool:
        """Tell whether the speed follows from a configured rate, not from what the engine can do.

        Neither a search for the highest rate nor an estimate has such a rate.
        """
        is_rated = SCENARIOS[scenario_of(self.settings)].pattern.is_rated
        return is_rated and self.settings.get("server_target_qps") != "max" and not self.is_estimate


def without_endpoint(item: Experiment) -> ValuesByName:
    """Return the settings of an experiment except its endpoint, to compare what else differs."""
    return {name: value for name, value in item.settings.items() if name != "endpoint"}


@dataclass(frozen=True)
class Sweep:
    """A whole sweep, the baseline first."""

    name: str
    about: str
    experiments: tuple[Experiment, ...]

    @property
    def is_of_servers(self) -> bool:
        """Tell whether the experiments differ only in their endpoint.

        One connection to each server then serves all rounds. False if an experiment has no endpoint or sets environment
        variables.
        """
        for item in self.experiments:
            if not item.settings.get("endpoint") or item.env:
                return False
            if without_endpoint(item) != without_endpoint(self.experiments[0]):
                return False
        return True


def single_value(value: object) -> object:
    """Return the value of an environment variable unchanged. Raises pydantic's error for a list or a mapping."""
    if isinstance(value, list | Mapping):
        raise PydanticCustomError("single_value", "not a single value")
    return value


Variable = Annotated[str, Field(pattern=VARIABLE_PATTERN)]
Value = Annotated[str | int | float | bool | None, BeforeValidator(single_value)]
Choices = Annotated[list[Any], Field(min_length=1)]


class VariableValues(BaseModel, extra="forbid"):
    """The settings of a file, part by part."""

    set: Mapping[str, Any] = {}

    @property
    def settings(self) -> SettingsByPart:
        """The settings of this part of a file, by part (set, engine, env) and name.

        The names of run.py's settings are in today's spelling, without dashes.
        """
        settings: SettingsByPart = {}
        for part in FILE_PARTS:
            for key, value in getattr(self, part).items():
                if part == "set":
                    settings[part, setting(key)] = value
                else:
                    settings[part, key] = value
        return settings


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
    """A parsed file, and the line of each key and list item in it."""

    path: Path
    content: SweepFile
    lines: LineNumbers

    def at(self, *where: str | int) -> str:
        """Return `file:line` of the place `where`, or of the innermost place around it that
        the file has; else of line 1.
        """
        while where and where not in self.lines:
            where = where[:-1]
        return f"{self.path}:{self.lines.get(where, 1)}"

    @property
    def changes(self) -> list[tuple[tuple[ExperimentKind, int], Variant]]:
        """The named experiments of the file, each with its place: the list that it stands in, and its index there."""
        changes: list[tuple[tuple[ExperimentKind, int], Variant]] = []
        for number, variant in enumerate(self.content.isolation):
            changes.append((("isolation", number), variant))
        for number, variant in enumerate(self.content.stacked):
            changes.append((("stacked", number), variant))
        return changes


class PlannedExperiment(NamedTuple):
    """An experiment before it is made."""

    where: str  # `file:line`
    kind: ExperimentKind
    variant: Variant
    change: SettingsByPart


def load_sweep(path: Path) -> Sweep:
    """Read the sweep file at `path` or, if there is no such file, the file of this name that comes with the program.

    Raises a UsageError that names every mistake with its line.
    """
    file = user_or_shipped_file(flag="", path=path, folder="sweeps")  # The file is an operand, not a flag's value.
    return merged_sweep(list(source_chain(file)))


def merged_sweep(sources: Sequence[Source]) -> Sweep:
    """Return the sweep of a file and the files that it extends.

    The file itself is last in `sources`, and what it says replaces what earlier files say. Raises a UsageError that
    names every mistake.
    """
    path = sources[-1].path
    contents = [source.content for source in sources]
    mistakes = list(itertools.chain.from_iterable(map(mistakes_in_names, sources)))
    baseline = SettingsByPart()  # the settings of the baseline, from which all others follow
    for content in contents:
        baseline = changed_settings(baseline, content.baseline.settings)
    baseline_about = last_text(content.baseline.about for content in contents)
    baseline_variant = Variant(name=BASELINE, about=baseline_about)
    planned_baseline = PlannedExperiment(sources[-1].at("baseline"), "baseline", baseline_variant, change={})
    planned_of_grid, mistakes_of_grid = grid_experiments(sources)
    planned = [planned_baseline, *named_experiments(sources), *planned_of_grid]
    experiments = made_experiments(planned, baseline)  # pairs of `file:line` and an experiment
    mistakes += mistakes_of_grid
    mistakes += mistakes_in_experiments(experiments)
    if len(experiments) == 1:  # the baseline alone
        mistakes.append(f"{path}:1: no experiments; add `isolation:`, `stacked:` or `grid:`")
    if mistakes:
        raise UsageError("\n".join(dict.fromkeys(mistakes)))
    about = last_text(content.about for content in contents)
    return Sweep(path.stem, about, tuple(experiment for _where, experiment in experiments))


def made_experiments(planned: Sequence[PlannedExperiment], baseline: SettingsByPart) -> list[tuple[str, Experiment]]:
    """Return the planned experiments with all their settings, each with its place, `file:line`.

    A stacked experiment adds its change to those of all stacked ones before it. Any other adds it to the baseline.
    """
    experiments = list[tuple[str, Experiment]]()
    stacked_settings = baseline  # the baseline's with the changes of all stacked experiments so far
    for item in planned:
        if item.kind == "stacked":
            stacked_settings = changed_settings(stacked_settings, item.change)
            settings = stacked_settings
        else:
            settings = changed_settings(baseline, item.change)
        experiment = make_experiment(item.variant, item.kind, settings, baseline)
        experiments.append((item.where, experiment))
    return experiments


def grid_experiments(sources: Sequence[Source]) -> tuple[list[PlannedExperiment], list[str]]:
    """Return the experiments of the grid before they are made, and the mistakes in it.

    Without a grid, both are empty.
    """
    sources_with_grid = [source for source in sources if source.content.grid]
    if not sources_with_grid:
        return [], []
    # Grids are not merged: the last one replaces the others.
    axes, where = grid_of(sources_with_grid[-1])
    count = math.prod(map(len, axes.values()))
    if count > MOST_EXPERIMENTS:
        return [], [f"{where}: {count:,} combinations; a sweep has at most {MOST_EXPERIMENTS:,}"]
    combinations = grid_combinations(axes)
    return [PlannedExperiment(where, "grid", variant, change=settings) for variant, settings in combinations], []


def grid_of(source: Source) -> tuple[SettingsByPart, str]:
    """Return the axes of a file's grid, each with its list of values, and `file:line` of the grid.

    The file must have one.
    """
    assert source.content.grid
    return source.content.grid.settings, source.at("grid")


def named_experiments(sources: Sequence[Source]) -> list[PlannedExperiment]:
    """Return the experiments of all files that have a name, before they are made.

    An experiment replaces one of the same name in an earlier file.
    """
    experiment_by_name = {}
    for source in sources:
        for place, variant in source.changes:
            kind, _index = place  # The list that an experiment stands in is its kind.
            experiment_by_name[variant.name] = PlannedExperiment(source.at(*place), kind, variant, variant.settings)
    return list(experiment_by_name.values())


def last_text(texts: Iterator[str]) -> str:
    """Return the last of the texts that is not empty; empty if all are."""
    non_empty = ["", *filter(None, texts)]
    return non_empty[-1]


def mistakes_in_experiments(experiments: Sequence[tuple[str, Experiment]]) -> Iterator[str]:
    """Yield what is wrong with whole experiments: bad names and bad settings, each with its place in the file.

    If RunConfig refuses the baseline's settings, the experiments after it are not checked.
    """
    earlier_names = set[str]()
    for where, item in experiments:
        for mistake in mistakes_of_name(item, earlier_names):
            yield f"{where}: {mistake}"
        earlier_names.add(item.name)
        if not item.settings.keys() <= RunConfig.model_fields.keys():
            continue  # The caller has reported unknown settings already, by `mistakes_in_names`.
        try:
            config = RunConfig(**item.settings)  # raises UsageError for values that run.py would refuse
            for mistake in mistakes_of_run(config):
                yield f"{where}: {item.name}: {mistake}"
        except UsageError as error:
            yield f"{where}: {item.name}: {error}"
            if item.name == BASELINE:
                break  # All experiments build on the baseline, so the others have the same mistake.


def mistakes_of_name(item: Experiment, earlier_names: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with an experiment's name, given the names of the experiments before it."""
    if item.name in earlier_names and item.kind == "grid":  # `mistakes_in_names` has reported any other.
        yield f"a second experiment named {item.name!r}"
    if item.name in RESERVED_NAMES and item.kind != "baseline":
        yield f"{item.name!r} is reserved: choose another name"
    # Only the names of a grid are made here; any other was checked when the file was read.
    if not re.match(NAME_PATTERN, item.name) or len(item.name) > LONGEST_EXPERIMENT_NAME:
        yield f"the grid's values do not form a folder name: {item.name[:80]!r}"


def mistakes_of_run(config: RunConfig) -> Iterator[str]:
    """Yield why the settings of a run do not fit an experiment of a sweep."""
    yield from label_problems(config)
    if config.following_scenarios:
        yield f"an experiment has one scenario, not {','.join(config.scenarios)}"
    lacks_rate = config.scenario_rules.pattern.is_rated and config.server_target_qps == "auto"
    is_speed_test = config.mode != "accuracy" and not config.quick  # An estimate (--quick) finds its rates.
    if lacks_rate and is_speed_test:
        yield (
            "the speed of a Server test is its target rate: give server_target_qps, "
            "as max (the highest rate that is VALID) or as one number for all, to compare TTFT and TPOT"
        )


def source_chain(path: Path, where: str = "", extending_files: tuple[Path, ...] = ()) -> Iterator[Source]:
    """Yield the parsed file and all files that it extends, the furthest first.

    Raises UsageError if a file extends itself. `where` is the place that asks for the file, for the message.
    `extending_files` are the resolved paths of the files above it.
    """
    if path.resolve() in extending_files:
        raise UsageError(f"{where}: {path} extends itself.")
    source = parse_source(path, where)
    if source.content.extends is not None:
        yield from source_chain(
            path.parent / source.content.extends, source.at("extends"), (*extending_files, path.resolve())
        )
    yield source


def read_yaml(path: Path, where: str) -> tuple[object, LineNumbers]:
    """Return the content of a YAML file, and the line of each key and list item in it.

    `where` is the place in another file that asks for this file, or empty. Raises UsageError if the file cannot be read
    or is not YAML.
    """
    try:
        text = read_text(path, LARGEST_SWEEP_FILE)
        data = files.json_value(load_yaml(text))  # dates as text, since sweep.json cannot hold dates
        return data, dict(places_in(yaml.compose(text, Loader=yaml.SafeLoader)))
    except OSError as error:
        name = f"{path!s:.200}"  # A file may extend a file with a name of any length.
        if where:
            raise UsageError(f"{where}: cannot read {name}: {system_reason(error)}.") from None
        raise UsageError(f"{name}: {system_reason(error)}.") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or error
        raise UsageError(f"{path}:{line}: not YAML: {problem}") from None


def parse_source(path: Path, where: str) -> Source:
    """Read and check one file. Raises a UsageError that names every mistake with its line.

    `where` is the place in another file that asks for this file; empty if the user does.
    """
    data, lines = read_yaml(path, where)
    if not isinstance(data, Mapping):
        raise UsageError(f"{path}:1: expected `baseline:` and lists of experiments.")
    try:
        return Source(path, SweepFile.model_validate(data), lines)
    except ValidationError as error:
        empty = Source(path, SweepFile(), lines)  # This source has the lines, but not the content that is not valid.
        mistakes = [f"{empty.at(*mistake['loc'])}: {mistake_text(mistake)}" for mistake in error.errors()]
        raise UsageError("\n".join(mistakes)) from None


def places_in(node: yaml.Node | None, path: FilePlace = ()) -> Iterator[tuple[FilePlace, int]]:
    """Yield the place and the line of every key and list item below `node`, whose own place is `path`.

    A place is the keys and list indexes that lead there. Nothing is below a single value or an empty file.
    """
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place: FilePlace = (*path, key.value)
            yield place, key.start_mark.line + 1  # PyYAML counts lines from 0.
            yield from places_in(value, place)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            place = (*path, number)
            yield place, value.start_mark.line + 1
            yield from places_in(value, place)


def mistake_text(mistake: ErrorDetails) -> str:
    """Return a mistake that pydantic found in a file as one line. For an unknown key, it suggests a known one."""
    place = mistake["loc"]  # the keys and list indexes that lead to it
    if mistake["type"] == "extra_forbidden":
        key = str(place[-1])
        # A path of one key is at the top of the file; any deeper one is in an experiment.
        model = SweepFile if len(place) == 1 else Variant
        return f"unknown key {key!r}{given_values.spelling_hint(key, [*model.model_fields])}"
    keys = [str(key) for key in place if key != "[key]"]  # Pydantic adds this to the place of a wrong key.
    return refusal_text(".".join(keys), mistake, PATTERN_WORDS)


def mistakes_in_names(source: Source) -> Iterator[str]:
    """Yield mistakes in the names that a file uses, each with its line.

    They are names of secrets, settings that run.py does not have or a sweep may not set, and a second experiment of the
    same name.
    """
    yield from secrets_in(source)
    sections: dict[FilePlace, VariableValues] = {("baseline",): source.content.baseline, **dict(source.changes)}
    if source.content.grid:
        sections[("grid",)] = source.content.grid
    names = set[str]()
    for where, section in sections.items():
        for key in section.set:
            for mistake in mistakes_of_flag(key, section.set):
                yield f"{source.at(*where, 'set', key)}: {mistake}"
        if isinstance(section, Variant):  # an experiment; the baseline and the grid have no name
            if section.name in names:
                yield f"{source.at(*where, 'name')}: a second experiment named {section.name!r}"
            names.add(section.name)


def secrets_in(source: Source) -> Iterator[str]:
    """Yield a mistake for each argument of the engine and each environment variable of a file that is a secret."""
    for path in source.lines:  # the keys that lead to each line of the file, from the outside in
        *outer_keys, name = path
        is_for_engine = "engine" in outer_keys or "env" in outer_keys
        if is_for_engine and secrets.is_secret(str(name)):
            yield f"{source.at(*path)}: no secrets in a sweep file: set {name} in the environment instead"


def mistakes_of_flag(key: str, section: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the name of a setting of run.py, which the file spells as `key`.

    `section` has all settings of the same part of the file, by name as spelled there.
    """
    flags = list(RunConfig.model_fields)
    name = setting(key)  # in today's spelling
    has_old_spelling = name != key  # If both spellings are given, only this one is reported.
    if has_old_spelling and name in section:
        yield f"{name!r} is given twice"
    if name in SWEEP_FLAGS:
        yield f"{given_values.flag_name(name)} is set by the sweep itself"
    elif name == "engine_arg":
        yield "write vLLM's arguments under `engine:`"
    elif name not in flags:
        yield given_values.unknown_setting(key, flags)


def changed_settings(start: SettingsByPart, change: SettingsByPart) -> SettingsByPart:
    """Return the settings of `start` with those of `change` on top. The value None (null in a file)
    removes a setting.
    """
    return {place: value for place, value in (start | change).items() if value is not None}


def grid_combinations(axes: SettingsByPart) -> Iterator[tuple[Variant, SettingsByPart]]:
    """Yield an experiment for every combination of one value of each axis, with the settings of the combination.

    The experiment's name says the combination, such as "max_num_seqs-8+seed-1".
    """
    for values in itertools.product(*axes.values()):
        settings = dict(zip(axes, values, strict=True))
        name = "+".join(f"{key}-{value}" for (_part, key), value in settings.items())
        name = name.replace("/", "_").replace(" ", "")
        yield Variant.model_construct(name=name), settings


def make_experiment(
    variant: Variant, kind: ExperimentKind, settings: SettingsByPart, baseline: SettingsByPart
) -> Experiment:
    """Return an experiment with these settings. `variant` has its name and whatever else its file says of it.

    The differences from `baseline`, the baseline's settings, are listed in words.
    """
    engine = values_of_part(settings, "engine")
    # Unless the settings say otherwise, a failed accuracy gate does not end the experiment.
    flags = {"no_exit_on_accuracy_fail": True, "extra_metrics": True, **values_of_part(settings, "set")}
    if engine:
        flags["engine_arg"] = [f"{key}={setting_text(value)}" for key, value in engine.items()]
    env = {key: setting_text(value) for key, value in values_of_part(settings, "env").items()}
    changes = tuple(changes_in_words(settings, baseline))
    return Experiment(variant.name, variant.about, kind, flags, engine, env, changes, variant.priority, variant.group)


def values_of_part(settings: SettingsByPart, part: FilePart) -> ValuesByName:
    """Return the settings of one part by name."""
    return {key: value for (of_part, key), value in settings.items() if of_part == part}


def changes_in_words(settings: SettingsByPart, baseline: SettingsByPart) -> Iterator[str]:
    """Yield each setting that is not as in the baseline, in words, in the order of FILE_PARTS.

    A setting that only the baseline has is named as missing.
    """
    for part in FILE_PARTS:
        for key in baseline | settings:
            part_of_setting, name = key
            if part_of_setting != part or settings.get(key) == baseline.get(key):
                continue
            if key in settings:
                yield change_text(name, settings[key])
            else:
                yield f"no {name}"


def change_text(name: str, value: object) -> str:
    """Return a setting that differs from the baseline's, as an experiment's list of changes has it."""
    return f"{name}={setting_text(value)}"
