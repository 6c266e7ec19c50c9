"""MLPerf's submission tree, with the description of its system.

Field names and which of them must not be empty: SYSTEM_DESC_* in the constants of the official submission checker.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pydantic_core import from_json

from harness.config import comparability, mlperf
from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.core.files import parse_as, read, submodule_path, write_json, write_text
from harness.core.formatting import joined
from harness.core.given_values import check_folder_name, read_given
from harness.core.locations import INFERENCE, ROOT
from harness.core.message_text import why
from harness.core.reading import read_text
from harness.core.statements import merge_by_remedy
from harness.core.system import CPUINFO, System, cpu_line
from harness.core.templates import render
from harness.core.word_list import names_in
from harness.loadgen import log as loadgen_log
from harness.loadgen.requests import ANSWERS
from harness.results.accuracy import SCORES_FILE, ScoresFile, accuracy_txt, digest
from harness.results.benchmark_run import facts_of
from harness.results.records import RunFacts
from harness.results.scoring import CUT
from harness.results.test06_verdict import Compliance
from harness.runner import test06_run
from harness.runs.run_folder import FOLDER, Test, status_of

# Everything the checker wants to see, in the order it is written; an empty text is for a person to fill.
FIELDS = names_in(
    """
    submitter division status system_name system_type system_type_detail number_of_nodes host_processor_model_name
    host_processors_per_node host_processor_core_count host_processor_frequency host_processor_caches
    host_processor_interconnect host_memory_capacity host_memory_configuration host_storage_type
    host_storage_capacity host_networking host_networking_topology host_network_card_count accelerators_per_node
    accelerator_model_name accelerator_memory_capacity accelerator_memory_configuration accelerator_frequency
    accelerator_host_interconnect accelerator_interconnect accelerator_interconnect_topology
    accelerator_on-chip_memories cooling framework operating_system other_software_stack hw_notes sw_notes
    """
)
MAY_BE_EMPTY = names_in(
    """
    system_type_detail host_processor_frequency host_processor_caches host_processor_interconnect
    accelerator_frequency accelerator_interconnect_topology accelerator_on-chip_memories hw_notes sw_notes
    """
)
Description = dict[str, object]  # by field
BUILD_FIELDS = ("submitter", "division", "system_type")  # `build` knows these
STATUSES = ("available", "preview", "rdi")
TYPES = ("datacenter", "edge", "datacenter,edge", "edge,datacenter")
NOT_APPLICABLE = "N/A"
# Of a server on the machine, which LoadGen's client only asks: what it does not tell, the submitter declares.
DECLARED = ("served_engine", "served_weights", "served_weight_data_type")


def engine_of(facts: RunFacts) -> str:
    """Name and version of the engine, of a server as it tells them."""
    return str(facts.engine_args.get("server") if facts.config.endpoint else facts.engine or "")


def declared(facts: RunFacts) -> Description:
    """What a server told of itself, empty where it did not; nothing of an engine of the run's own."""
    if not facts.config.endpoint:
        return {}
    engine, args = engine_of(facts), facts.engine_args
    kinds = (args.get("server_quantization"), args.get("server_dtype"))
    kind = next((kind for kind in kinds if kind and kind != "auto"), "")
    return dict(zip(DECLARED, (engine if re.search(r"\d", engine) else "", facts.config.model, kind), strict=True))


def describe(machine: System, facts: RunFacts | None = None, is_here: bool = True) -> Description:
    """The description of a machine, with what the server of a run tells of itself; of this one more is looked up."""
    gpus, memory = machine.gpus, machine.gpu_memory_gib
    versions = {"Python": machine.python, **machine.packages, "CUDA": machine.cuda, "driver": machine.driver}
    stack = ("Python", "torch", "transformers", "mlcommons-loadgen", "CUDA", "driver")
    served = declared(facts) if facts else {}
    found: Description = {
        name: NOT_APPLICABLE if name.startswith("accelerator_") and not gpus else "" for name in FIELDS
    }
    found |= {
        "number_of_nodes": 1,
        "host_processor_model_name": machine.cpu,
        "host_memory_capacity": f"{machine.memory_gib:.0f} GiB",
        "accelerators_per_node": len(gpus) or "0",  # the checker takes the number 0 for an empty field
        "framework": served.get(DECLARED[0], f"vLLM {machine.vllm_version}" if machine.vllm_version else ""),
        "operating_system": machine.os,
        "other_software_stack": ", ".join(f"{name} {versions[name]}" for name in stack if versions.get(name)),
    }
    if gpus:
        found["accelerator_model_name"] = gpus[0]
        found["accelerator_memory_capacity"] = f"{memory:.0f} GiB" if memory else ""
    if len(gpus) == 1:
        found["accelerator_interconnect"] = NOT_APPLICABLE
    return found | served | (hardware() if is_here else {})


def hardware() -> Description:
    """What else this machine tells of itself: sockets, cores, caches, disk."""
    found: Description = {"host_storage_capacity": f"{shutil.disk_usage('/').total / 1e9:.0f} GB"}
    with suppress(OSError):
        sockets = set(re.findall(r"^physical id\s*:\s*(\d+)$", CPUINFO.read_text(), re.M))
        cores = cpu_line("cpu cores")
        found |= {
            "host_processors_per_node": len(sockets) or 1,
            "host_processor_core_count": int(cores) if cores else "",
            "host_processor_caches": cpu_line("cache size"),
        }
    return found


def missing(description: Description) -> list[str]:
    """Fields that must be filled and are not; `build` itself knows submitter, division and type."""
    return [
        name
        for name in (*FIELDS, *(name for name in DECLARED if name in description))
        if name not in description or not (description[name] or name in MAY_BE_EMPTY + BUILD_FIELDS)
    ]


def read_description(path: Path) -> Description:
    """A filled-in description. Raises UsageError with the fields that are still empty."""
    data = read_given("--system", path, "JSON", partial(from_json, allow_inf_nan=False))
    if not isinstance(data, dict):
        raise UsageError(f"--system {path}: expected an object, as `python -m harness submission system` writes it.")
    if empty := missing(data):
        raise UsageError(f"--system {path}: fill in {', '.join(empty)} first.")
    if str(data["status"]).lower() not in STATUSES:
        raise UsageError(f"--system {path}: status is one of {', '.join(STATUSES)}; got {data['status']!r}.")
    if data["system_type"] and data["system_type"] not in TYPES:
        raise UsageError(f"--system {path}: system_type is one of {' | '.join(TYPES)}; got {data['system_type']!r}.")
    if "is_network" in data:
        raise UsageError(f"--system {path}: remove is_network: LoadGen and the engine run on one machine.")
    return data


def complete(description: Description, submitter: str, division: str, categories: Collection[str]) -> Description:
    """The description with what `build` knows. Raises UsageError where its system_type leaves out a run's category."""
    needed = sorted(categories)
    declared = str(description.get("system_type") or ",".join(needed))
    if not set(needed) <= set(declared.split(",")):
        raise UsageError(f"--system: system_type is {declared}, but the runs are {' and '.join(needed)}.")
    return description | {"submitter": submitter, "division": division, "system_type": declared}


# Entries -> the folders of a submission, as MLPerf v5.1, v6.0 and v6.1 lay them out.
# MLPerf's own submission checker, from the submodule, on a submission.
TOOLS = INFERENCE / "tools" / "submission"
SUMMARY = "summary.csv"


def check(tree: Path, version: str) -> tuple[str, str]:
    """Why the checker does not accept the submission (empty if it does), and all it says. Leaves summary.csv in it.

    It says nothing of folders that it does not look into, so each result in the tree must be among those it checked.
    Raises UsageError where the submodule is not there.
    """
    submodule_path(TOOLS / "submission_checker" / "main.py")
    place = tree.resolve()
    command = [sys.executable, "-m", "submission_checker.main", "--input", str(place)]
    command += ["--version", f"v{version}", "--csv", str(place / SUMMARY)]
    ended = subprocess.run(command, cwd=TOOLS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = ended.stdout.replace(str(place), str(tree))
    counts = re.search(r"\bResults=(\d+), NoResults=(\d+)", said)  # of the results that it looked at
    expected, found = len(results_in(tree)), sum(map(int, counts.groups())) if counts else 0
    if ended.returncode or errors(said):
        return f"{len(errors(said))} errors, exit code {ended.returncode}", said
    if found < expected or not expected:
        layout = "it looks into DIVISION/SUBMITTER/results/SYSTEM/BENCHMARK/SCENARIO, with DIVISION open or closed"
        return f"the checker checked {found} of the {expected} results in it: {layout}", said
    return invalid(tree), said


def invalid(tree: Path) -> str:
    """The first closed result that LoadGen calls INVALID, which the checker passes over; empty if there is none."""
    for log in results_in(tree):
        result = loadgen_log.read(log.parent)
        if log.relative_to(tree).parts[0] == "closed" and not result.valid:
            return f"{log}: LoadGen calls it INVALID: {merge_by_remedy(result.invalid_reasons)}"
    return ""


def errors(said: str) -> list[str]:
    return [line for line in said.splitlines() if re.search(r"\bERROR\b", line)]


def results_in(tree: Path) -> list[Path]:
    """The performance logs of a submission, wherever they lie in it, but for those of compliance tests."""
    logs = sorted(tree.rglob(f"performance/run_1/{loadgen_log.DETAIL}"))
    return [log for log in logs if not re.fullmatch(r"TEST\d+", log.parents[2].name)]


def version_of(tree: Path) -> str:
    """The MLPerf round whose seeds the submission's logs have. Raises UsageError."""
    logs = results_in(tree)
    if not logs:
        raise UsageError(f"{tree}: no performance logs in it; not a submission.")
    seeds = loadgen_log.read(logs[0].parent).seeds
    for version, official in mlperf.SEEDS.items():
        if seeds == vars(official):
            return version
    raise UsageError(f"{logs[0]}: its seeds are of no round this program knows; name one with --version.")


# Finished runs -> the entries of a submission: one for each benchmark and scenario.
BENCHMARK = {"datacenter": "llama3.1-8b", "edge": "llama3.1-8b-edge"}
SCENARIO = {name: rules.loadgen for name, rules in mlperf.SCENARIO.items()} | {"interactive": "Interactive"}

MODE: dict[Test, str] = {"accuracy": "AccuracyOnly", "performance": "PerformanceOnly", "test06": "PerformanceOnly"}

# What a test leaves where it finished.
RESULT_FILES: dict[Test, str] = {
    "accuracy": SCORES_FILE,
    "performance": loadgen_log.DETAIL,
    "test06": test06_run.RESULT,
}

# What two runs of an entry may differ in: LoadGen's settings, of which an accuracy test needs none; and of their speed
# the refusals tell.
LOADGEN_FLAGS = ("server_target_qps", "offline_expected_qps", "min_duration")
IGNORED = (*LOADGEN_FLAGS, "python", "variables", "busyness", "validity", "rate")


class SubmittedRun(NamedTuple):
    """A finished run's folder, and its config.json."""

    path: Path
    facts: RunFacts

    @property
    def config(self) -> RunConfig:
        return self.facts.config

    def folder(self, test: Test) -> Path:
        return self.path / FOLDER[test]

    def has_test(self, test: Test) -> bool:
        """Whether the test finished."""
        return (self.folder(test) / RESULT_FILES[test]).exists()

    def log(self, test: Test) -> loadgen_log.TestResult:
        """What LoadGen's log says of the test. Raises LogError."""
        return loadgen_log.read(self.folder(test), self.config.scenario_rules.loadgen, MODE[test])

    @property
    def scores(self) -> ScoresFile:
        return read(self.folder("accuracy") / SCORES_FILE, ScoresFile)

    @property
    def test06(self) -> tuple[Compliance, int]:
        """What came of TEST06, and the id of the end-of-text token that it was judged with."""
        path = self.folder("test06") / test06_run.RESULT
        outcome = read(path, Compliance)
        return outcome, parse_as(path, outcome.facts.get("eos"), int)


class Entry(NamedTuple):
    """One result of a submission: an accuracy and a performance test, often of one run, and TEST06 where it was run."""

    accuracy: SubmittedRun
    performance: SubmittedRun
    test06: SubmittedRun | None

    @property
    def config(self) -> RunConfig:
        return self.performance.config

    @property
    def benchmark(self) -> str:
        return BENCHMARK[self.config.category]

    @property
    def scenario(self) -> str:
        return SCENARIO[self.config.scenario]

    @property
    def runs(self) -> list[SubmittedRun]:
        runs = (self.accuracy, self.performance, self.test06)
        return list({run.path: run for run in runs if run}.values())


def read_run(path: Path) -> SubmittedRun:
    """Raises UsageError for a folder that holds no finished run, LogError for logs that are not its own."""
    run = SubmittedRun(path, facts_of(path))
    status = status_of(path)
    if not status or status.status != "complete":
        raise UsageError(
            f"{path}: this run is {status.status if status else 'unfinished'}; only complete ones can be submitted."
        )
    for test in MODE:
        if run.has_test(test):
            run.log(test)
    return run


def collect(paths: Sequence[Path]) -> list[Entry]:
    """The entries that the runs make up, in the order given. Raises UsageError where one is not whole.

    An entry's accuracy and performance test may come from two runs of the same settings.
    """
    groups = dict[str, list[SubmittedRun]]()
    for run in map(read_run, paths):
        groups.setdefault(f"{run.config.category} {run.config.scenario}", []).append(run)
    entries = [join(runs, label) for label, runs in groups.items()]
    versions = sorted({entry.config.round for entry in entries})
    if len(versions) > 1:
        raise UsageError(f"these runs are of MLPerf v{' and v'.join(versions)}; a submission is of one round.")
    return entries


def join(runs: Sequence[SubmittedRun], label: str) -> Entry:
    """One entry out of the runs of its scenario."""
    names = " and ".join(str(run.path) for run in runs)
    found: dict[Test, list[SubmittedRun]] = {test: [run for run in runs if run.has_test(test)] for test in MODE}
    for test, having in found.items():
        if not having and test != "test06":
            raise UsageError(f"{label} has no {test} test ({names}): add a run that has one.")
        if len(having) > 1:
            raise UsageError(f"{label}: {' and '.join(str(run.path) for run in having)} both have {test}: give one.")
    for run in runs[1:]:
        if unlike := comparability.differences(runs[0].facts.comparable, run.facts.comparable, IGNORED):
            raise UsageError(
                f"{label}: {names} differ in {' and '.join(each.name for each in unlike)}; an entry is of one system, "
                "with the same settings."
            )
    return Entry(found["accuracy"][0], found["performance"][0], next(iter(found["test06"]), None))


IMPLEMENTATION = "vllm"
LOGS = ("mlperf_log_summary.txt", "mlperf_log_detail.txt")
KEPT_CHARACTERS = 4096  # of the accuracy log, at each end
NOTES = Path("documentation") / "calibration.md"
CODE = names_in("*.py harness/**/*.py templates/**/* configs/* requirements*.txt pyproject.toml Makefile README.md")


def build(entries: Sequence[Entry], description: Description, system: str, out: Path) -> Path:
    """Writes the submission of one system into `out` and returns division/submitter in it. Raises UsageError.

    `system` names the system in paths; `description` is its whole description, submitter and division included.
    """
    check_folder_name("--system", system)
    check_folder_name("--submitter", description["submitter"])
    base = out / str(description["division"]) / str(description["submitter"])
    if (base / "results" / system).exists():
        raise UsageError(f"{base / 'results' / system} already exists: remove it, or choose another --out.")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".new-") as fresh:  # all of it appears, or nothing
        whole = Path(fresh) / "tree"
        new = whole / base.relative_to(out)
        fill(entries, description, system, new)
        if (base / NOTES).exists():  # what an earlier build, or a person, wrote of other systems comes first
            before, added = read_text(base / NOTES).rstrip(), read_text(new / NOTES).partition("\n")[2]
            write_text(new / NOTES, f"{before}\n\n{added.lstrip()}")
        shutil.copytree(whole, out, dirs_exist_ok=True)
    return base


def fill(entries: Sequence[Entry], description: Description, system: str, base: Path) -> None:
    for entry in entries:
        where = Path(system) / entry.benchmark / entry.scenario
        results = base / "results" / where
        put_results(entry, results)
        if entry.config.round == "5.1":
            code, compliance = "code", base / "compliance" / where
            measured = base / "measurements" / where / f"{system}_{IMPLEMENTATION}_{entry.scenario}.json"
        else:
            code, compliance, measured = "src", results, results / "measurements.json"
        put_measurements(entry, description, measured)
        put_test06(entry, compliance)
        put_code(base / code / entry.benchmark)
    (base / "systems").mkdir(parents=True, exist_ok=True)
    known = {name: value for name, value in description.items() if name not in DECLARED}
    if said := [str(description[name]) for name in DECLARED if description.get(name)]:  # among the checker's fields
        note = f"Declared, not recorded, of the server that LoadGen's client asks over HTTP: {', '.join(said)}."
        known["sw_notes"] = joined(" ", str(known.get("sw_notes", "")), note)
    write_json(base / "systems" / f"{system}.json", known)
    (base / NOTES).parent.mkdir(exist_ok=True)
    write_text(base / NOTES, render("calibration.md.j2", entries=entries, system=system))


def put_results(entry: Entry, folder: Path) -> None:
    """LoadGen's logs of both tests, the scores, and the accuracy log cut as MLPerf asks."""
    source, target = entry.accuracy.folder("accuracy"), folder / "accuracy"
    copy(source, target, LOGS)
    log = source / ANSWERS
    text = read_given("", log, "text", str)
    found = digest(log)
    rouge = entry.accuracy.scores
    if (rouge.log or found) != found:
        raise UsageError(f"{log}: rouge.json was computed from another log.")
    try:
        scores = mlperf.Scores(**rouge.scores)
    except TypeError:
        raise UsageError(f"{source}/rouge.json: its scores are not {', '.join((*mlperf.ROUGE, 'gen_len'))}.") from None
    write_text(target / "accuracy.txt", accuracy_txt(scores, rouge.samples, found))
    if len(text) >= KEPT_CHARACTERS:  # its hash in accuracy.txt is that of the whole
        text = text[:KEPT_CHARACTERS] + CUT + text[-KEPT_CHARACTERS:]
    write_text(target / ANSWERS, text)
    copy(entry.performance.folder("performance"), folder / "performance" / "run_1", LOGS)


def put_measurements(entry: Entry, description: Description, path: Path) -> None:
    """How the result was made: the JSON that the checker reads; a README and LoadGen's user.conf lie beside it."""
    config = entry.config
    copy(entry.performance.folder("performance"), path.parent, ("user.conf",))
    engine_state = entry.performance.facts.plan.engine_state
    kind = engine_state.quantization
    weights, types = config.model, config.precision if kind == "none" else kind
    changed = "as in the checkpoint" if engine_state.quantized_checkpoint else f"quantized to {kind} when loaded"
    changed = "none" if kind == "none" else changed
    if config.endpoint:  # whatever its server does
        weights, types = (str(description.get(name) or "not declared") for name in DECLARED[1:])
        changed = "whatever the server makes of them"
    write_json(
        path,
        {
            "input_data_types": "int32",  # token ids
            "retraining": "No",
            "starting_weights_filename": weights,
            "weight_data_types": types,
            "weight_transformations": changed,
        },
    )
    known = {"facts": entry.performance.facts, "rouge": entry.accuracy.scores}
    write_text(path.parent / "README.md", render("measurements.md.j2", entry=entry, config=config, **known))


def put_test06(entry: Entry, folder: Path) -> None:
    if not entry.test06:
        return
    source, target = entry.test06.folder("test06"), folder / Path(FOLDER["test06"]).name
    copy(source, target, ("verify_accuracy.txt",))
    copy(source, target / "accuracy", (ANSWERS,))
    copy(source, target / "performance" / "run_1", LOGS)


def put_code(folder: Path) -> None:
    """This program, without the submodule, tests and results."""
    for pattern in CODE:
        for path in filter(Path.is_file, ROOT.glob(pattern)):
            copy(path.parent, folder / path.parent.relative_to(ROOT), (path.name,))


def copy(source: Path, target: Path, names: Sequence[str]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        try:
            shutil.copyfile(source / name, target / name)
        except OSError as error:
            raise UsageError(f"{source / name}: {why(error)}; is the run whole?") from None
