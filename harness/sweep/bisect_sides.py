"""GOOD and BAD as a user names them: run folders, labels or config files; and the differences that a run can set."""

import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from harness.config.comparability import Comparable, differences
from harness.config.run import RunConfig
from harness.core import software, system
from harness.core.errors import UsageError
from harness.core.given_values import flag_name
from harness.core.message_text import system_reason
from harness.core.reading import setting_text
from harness.core.secrets import MASK
from harness.report import compare
from harness.report.regression import Condition
from harness.results.benchmark_run import facts_of
from harness.runs import find
from harness.sweep.bisection import SideDifference
from harness.sweep.file import SWEEP_FLAGS, FilePart, SettingsByPart

PYTHON_START_S = 60.0  # the longest time in which an interpreter must answer
MOST_NAMED_PACKAGES = 3
# Settings of a run that a bisection does without, or sets itself.
UNBISECTED = (*SWEEP_FLAGS, "mode", "label", "json", "profile", "compliance", "exit_on_invalid", "price_per_hour")
SPLIT_SETTINGS = ("engine_arg", "engine_patch")  # lists, each item of which is a difference of its own
MODEL_SETTINGS = ("model", "served_model_name")
PACKAGES_SCRIPT = """
import json
from importlib import metadata
print(json.dumps({str(each.metadata["Name"]).lower(): each.version for each in metadata.distributions()}))
"""


@dataclass(frozen=True)
class Side:
    """GOOD or BAD: what a step needs to run it again, and what was recorded of it."""

    name: str
    settings: dict[str, JsonValue]  # those that were given, by name
    engine: dict[str, Any] = field(default_factory=dict)  # the engine's arguments
    patches: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None  # environment variables; None: not known, as for a config file
    python: str = ""  # the interpreter; empty: the current one
    config: RunConfig = field(default_factory=RunConfig)  # all settings, with defaults
    recorded: Comparable = Comparable()  # machine and software: those of the run, or for a config file those of today

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables; empty if they are not known."""
        return self.env or {}

    @property
    def by_part(self) -> SettingsByPart:
        """The settings of the side as a sweep file has them: values by part of the file and name.

        Patches are one setting.
        """
        settings: SettingsByPart = {}
        values: dict[FilePart, Mapping[str, Any]] = {"set": self.settings, "engine": self.engine, "env": self.variables}
        for part, values_of_part in values.items():
            for name, value in values_of_part.items():
                settings[part, name] = value
        if self.patches:
            settings["set", "engine_patch"] = [*self.patches]
        return settings


def load_side(word: str, results_dir: Path) -> Side:
    """Return the side that a word names: a config file, or a run by its folder or label.

    Raises UsageError if the file or the run cannot be read, and for a config file with several scenarios.
    """
    path = Path(word)
    if path.is_file():
        config = RunConfig.load(path)
        if config.following_scenarios:
            raise UsageError(f"{path}: a bisection has one scenario, not {','.join(config.scenarios)}.", path=path)
        machine = Comparable.of_machine(system.detect())  # A config file says nothing of a machine: it is this one.
        return side_of(word, config, env=None, recorded=machine)  # The other side's variables will be taken.
    folder = find.find_runs(word, results_dir)[-1]  # A label means its latest run.
    facts = facts_of(folder)
    machine = Comparable.of_machine(facts.system)
    return side_of(word, facts.config, env=facts.system.variables, recorded=machine)


def load_sides(words: Sequence[str], results_dir: Path) -> tuple[Side, Side]:
    """Return GOOD and BAD, which the first and the last word name. With a single word, both are the same.

    A config file has no environment variables, so it takes those of the other side.
    """
    good, bad = load_side(words[0], results_dir), load_side(words[-1], results_dir)
    if good.env is None:
        good = replace(good, env=bad.env or {})
    if bad.env is None:
        bad = replace(bad, env=good.env)
    return good, bad


def side_of(name: str, config: RunConfig, env: Mapping[str, str] | None, recorded: Comparable) -> Side:
    """Return a side (GOOD or BAD) with the settings that were given.

    `env` has the side's environment variables, None if they are not known. `recorded` is what is known of its machine
    and software.
    """
    settings: dict[str, JsonValue] = {}
    for setting, value in config.values(config.model_fields_set).items():
        # A bisection sets or ignores UNBISECTED. Each item of SPLIT_SETTINGS is a difference of its own, so these
        # settings are given apart from the others (`engine`, `patches`).
        if setting not in (*UNBISECTED, *SPLIT_SETTINGS) and value is not None:
            settings[setting] = to_jsonable_python(value)
    return Side(
        name,
        settings,
        engine=config.engine_args,
        patches=config.engine_patch,
        env=env,
        python="",  # the current interpreter
        config=config,
        recorded=recorded,
    )


def check_good(word: str, results_dir: Path, conditions: Sequence[Condition]) -> None:
    """Raise UsageError if GOOD, which `word` names, is a run that cannot stand for a good one."""
    if Path(word).is_file():
        return  # A config file has no results that could be bad.
    folder = find.find_runs(word, results_dir)[-1]  # A label means its latest run.
    summary = compare.read_run(folder).summary
    has_answers = any(condition.is_of_answers for condition in conditions)
    has_speed = any(not condition.is_of_answers for condition in conditions)
    # If a condition is on answers, it judges them itself, and the gate does not decide.
    if summary.gate == "FAIL" and not has_answers:
        raise UsageError(f"--bisect: {word} failed its accuracy gate: only BAD may; give another run as GOOD.")
    if summary.result and summary.result.valid is False and has_speed:
        raise UsageError(f"--bisect: {word} is INVALID: only BAD may be; give a VALID run as GOOD.")


def check_work(good: Side, bad: Side) -> None:
    """Raise UsageError if the sides do different work, such as other samples.

    No step between them could be judged then.
    """
    # A test cannot be compared with an estimate (--quick), nor with a test at another rate.
    names = [*RunConfig.flags_by_effect("work"), "quick", "server_target_qps"]
    for name in names:
        before, after = value_of(good, name), value_of(bad, name)
        if before != after:
            values = f"{setting_text(before)} and {setting_text(after)}"
            raise UsageError(
                f"--bisect: {good.name} and {bad.name} are of different work: {flag_name(name)} {values}; "
                "give both the same."
            )


def names_of_both(good: Iterable[str], bad: Iterable[str]) -> list[str]:
    """Return each name that GOOD or BAD has once, in their order."""
    return list(dict.fromkeys([*good, *bad]))


def testable_differences(good: Side, bad: Side) -> list[SideDifference]:
    """Return the differences that a run can set.

    Settings come first, in the order of the flags, then the engine's arguments, patches and environment variables. Left
    out are the model, and values that were not recorded or cannot be set.
    """
    changes = []
    for name in RunConfig.flags_by_effect("answers", "speed"):
        before, after = good.settings.get(name), bad.settings.get(name)
        # The items of SPLIT_SETTINGS are compared one by one below.
        is_left_out = name in SPLIT_SETTINGS or name in MODEL_SETTINGS or name in UNBISECTED
        # A setting that a side does not give has its default there, so the values in effect are compared.
        if not is_left_out and value_of(good, name) != value_of(bad, name):
            changes.append(SideDifference("set", name, before, after))
    for name in names_of_both(good.engine, bad.engine):
        before, after = good.engine.get(name), bad.engine.get(name)
        is_recorded = MASK not in (before, after)  # A secret is masked, so its value is not known.
        if before != after and is_recorded:
            changes.append(SideDifference("engine", name, before, after))
    for name in names_of_both(good.patches, bad.patches):
        is_in_good, is_in_bad = name in good.patches, name in bad.patches
        if is_in_good != is_in_bad:
            changes.append(SideDifference("patch", name, is_in_good, is_in_bad))
    for name in names_of_both(good.variables, bad.variables):
        before, after = good.variables.get(name), bad.variables.get(name)
        if before != after and not reason_not_settable(name, good, bad):
            changes.append(SideDifference("env", name, before, after))
    return changes


def value_of(side: Side, name: str) -> JsonValue:
    """Return the value of a setting in a side's config, which is the default if it was not given."""
    value: JsonValue = to_jsonable_python(getattr(side.config, name))
    return value


def reason_not_settable(name: str, good: Side, bad: Side) -> str:
    """Return why an environment variable cannot be set as a side has it; empty if it can.

    A secret was not recorded. A variable that one side does not have cannot be taken away if this shell sets it.
    """
    if MASK in (good.variables.get(name), bad.variables.get(name)):
        return "its value was not recorded"
    if (name not in good.variables or name not in bad.variables) and name in os.environ:
        return "set in this shell: unset it"
    return ""


def untestable_texts(good: Side, bad: Side) -> list[str]:
    """Return the differences that a run cannot set, in words, each with the reason or both values.

    They are the model, secrets, some environment variables, and the machine and its software.
    """
    texts = []
    for name in MODEL_SETTINGS:
        before, after = value_of(good, name), value_of(bad, name)
        if before != after:
            texts.append(f"{name} ({setting_text(before)}, {setting_text(after)}: every step has the first)")
    for name in names_of_both(good.engine, bad.engine):
        before, after = good.engine.get(name), bad.engine.get(name)
        if before != after and MASK in (before, after):  # A secret was masked when the run was recorded.
            texts.append(f"{name} (its value was not recorded)")
    for name in names_of_both(good.variables, bad.variables):
        reason = reason_not_settable(name, good, bad)
        if good.variables.get(name) != bad.variables.get(name) and reason:
            texts.append(f"{name} ({reason})")
    has_two_environments = good.python != bad.python
    for difference in differences(good.recorded, bad.recorded, ignore=("variables",)):
        remedy = ""
        if difference.aspect == "software":
            if has_two_environments:
                continue  # The interpreters are bisected, whatever the runs had.
            remedy = ": --python PATH starts a side's environment"
        texts.append(f"{difference.name} ({value_text(difference.a)}, {value_text(difference.b)}{remedy})")
    return texts


def value_text(value: object) -> str:
    """Return a recorded value as text; None is a value that was not recorded."""
    if value is None:
        return "not recorded"
    return setting_text(value)


def installed_in(python: str) -> dict[str, str]:
    """Return the packages of an interpreter's environment with their versions.

    Raises UsageError if the interpreter does not start, does not answer in time, or is no Python.
    """
    command = [python, "-c", PACKAGES_SCRIPT]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=PYTHON_START_S, check=False)
    except subprocess.TimeoutExpired:
        raise UsageError(f"--python {python}: no answer within {PYTHON_START_S:g} s.") from None
    except OSError as error:
        raise UsageError(f"--python {python}: {system_reason(error)}.") from None
    except ValueError:  # The path has a null byte, or the output is no text.
        raise UsageError(f"--python {python}: not a Python interpreter; give PATH/bin/python.") from None
    if process.returncode:
        lines = process.stderr.strip().splitlines()
        problem = lines[-1] if lines else process.returncode
        raise UsageError(f"--python {python}: not a Python that starts: {problem}.")
    try:
        packages = json.loads(process.stdout).items()
        return {str(name): str(version) for name, version in packages}
    except (ValueError, AttributeError):
        raise UsageError(f"--python {python}: not a Python interpreter; give PATH/bin/python.") from None


def environment_changes(pythons: Sequence[str]) -> Iterator[SideDifference]:
    """Yield each environment after the first as a difference from the environment before.

    It is named by the packages that changed or, if none did, by its interpreter.
    """
    packages = [installed_in(python) for python in pythons]
    for place in range(1, len(pythons)):
        name = name_change(packages[place - 1], packages[place]) or pythons[place]
        yield SideDifference("python", name, pythons[place - 1], pythons[place])


def name_change(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Return the packages that changed between two environments, with their new versions, as text.

    Empty if none changed. Packages that affect measurements come first, and only MOST_NAMED_PACKAGES are named.
    """
    order = dict.fromkeys([*software.MEASURING_PACKAGES, *sorted({*before, *after})])
    changes = []
    for name in order:
        if before.get(name) != after.get(name):
            changes.append(f"{name} {after.get(name, 'removed')}")
    unnamed_count = len(changes) - MOST_NAMED_PACKAGES
    if unnamed_count > 0:
        changes[MOST_NAMED_PACKAGES:] = [f"{unnamed_count} more packages"]
    return ", ".join(changes)


def side_with_changes(good: Side, changes: Sequence[SideDifference]) -> Side:
    """Return GOOD, except that the given differences have BAD's values."""
    settings, engine, env = dict(good.settings), dict(good.engine), dict(good.variables)
    patches, python = good.patches, good.python
    for change in changes:
        if change.part == "patch":
            patches = patches_after(patches, change)
        elif change.part == "python":
            python = str(change.bad)
        elif change.part == "engine":
            set_value(engine, change)
        elif change.part == "env":
            set_value(env, change)
        else:  # a setting of the run
            set_value(settings, change)
    return replace(good, settings=settings, engine=engine, patches=patches, env=env, python=python)


def patches_after(patches: Sequence[str], change: SideDifference) -> tuple[str, ...]:
    """Return the patches with one difference set as in BAD: its patch is removed, or added in sorted order."""
    names = [name for name in patches if name != change.name]
    if change.bad:
        return tuple(sorted([*names, change.name]))
    return tuple(names)


def set_value(values: dict[str, Any], change: SideDifference) -> None:
    """Give a setting BAD's value of a difference, or remove the setting if BAD does not have it."""
    if change.bad is None:
        values.pop(change.name, None)
    else:
        values[change.name] = change.bad
