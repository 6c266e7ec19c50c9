"""MLPerf's submission tree, with the description of its system.

Field names and which of them must not be empty: SYSTEM_DESC_* in the constants of the official submission checker.
"""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness.config import mlperf
from harness.core.errors import UsageError
from harness.core.file_limits import LARGEST_ACCURACY_LOG
from harness.core.files import write_json, write_text
from harness.core.formatting import joined_text
from harness.core.given_values import check_folder_name, read_given
from harness.core.locations import ROOT
from harness.core.message_text import system_reason
from harness.core.reading import read_text
from harness.core.templates import render
from harness.core.word_list import names_in
from harness.loadgen.requests import ANSWERS_FILE
from harness.results.accuracy import accuracy_txt, log_digest
from harness.results.scoring import CUT
from harness.runs.run_folder import TEST_FOLDERS
from harness.submission.entries import Entry
from harness.submission.system_description import DECLARED, Description

IMPLEMENTATION = "vllm"
LOGS = ("mlperf_log_summary.txt", "mlperf_log_detail.txt")
KEPT_CHARACTERS = 4096  # characters kept of the accuracy log, at each end
NOTES = Path("documentation") / "calibration.md"
CODE = names_in("*.py harness/**/*.py templates/**/* configs/* requirements*.txt pyproject.toml Makefile README.md")


def build(entries: Sequence[Entry], description: Description, system: str, out: Path) -> Path:
    """Write the submission of one system into `out` and return the folder division/submitter in it. Raises UsageError.

    `system` names the system in paths. `description` is complete, with submitter and division.
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
        write_entries(entries, description, system, new)
        if (base / NOTES).exists():  # the notes of an earlier build, or a person, on other systems come first
            before, added = read_text(base / NOTES).rstrip(), read_text(new / NOTES).partition("\n")[2]
            write_text(new / NOTES, f"{before}\n\n{added.lstrip()}")
        shutil.copytree(whole, out, dirs_exist_ok=True)
    return base


def write_entries(entries: Sequence[Entry], description: Description, system: str, base: Path) -> None:
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
    if declared_texts := [
        str(description[name]) for name in DECLARED if description.get(name)
    ]:  # among the checker's fields
        note = (
            f"Declared, not recorded, of the server that LoadGen's client asks over HTTP: {', '.join(declared_texts)}."
        )
        known["sw_notes"] = joined_text(" ", str(known.get("sw_notes", "")), note)
    write_json(base / "systems" / f"{system}.json", known)
    (base / NOTES).parent.mkdir(exist_ok=True)
    write_text(base / NOTES, render("calibration.md.j2", entries=entries, system=system))


def put_results(entry: Entry, folder: Path) -> None:
    """Write LoadGen's logs of both tests, the scores, and the accuracy log, shortened as MLPerf asks."""
    source, target = entry.accuracy.folder("accuracy"), folder / "accuracy"
    copy_file(source, target, LOGS)
    log = source / ANSWERS_FILE
    text = read_given("", log, "text", str, most=LARGEST_ACCURACY_LOG)
    sha256 = log_digest(log)
    rouge = entry.accuracy.scores
    if (rouge.log or sha256) != sha256:
        raise UsageError(f"{log}: rouge.json was computed from another log.")
    try:
        scores = mlperf.ReferenceScores(**rouge.scores)
    except TypeError:
        raise UsageError(f"{source}/rouge.json: its scores are not {', '.join((*mlperf.ROUGE, 'gen_len'))}.") from None
    write_text(target / "accuracy.txt", accuracy_txt(scores, rouge.samples, sha256))
    if len(text) >= KEPT_CHARACTERS:  # its hash in accuracy.txt is that of the whole
        text = text[:KEPT_CHARACTERS] + CUT + text[-KEPT_CHARACTERS:]
    write_text(target / ANSWERS_FILE, text)
    copy_file(entry.performance.folder("performance"), folder / "performance" / "run_1", LOGS)


def put_measurements(entry: Entry, description: Description, path: Path) -> None:
    """Write how the result was made: the JSON for the checker, with a README and LoadGen's user.conf beside it."""
    config = entry.config
    copy_file(entry.performance.folder("performance"), path.parent, ("user.conf",))
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
    source, target = entry.test06.folder("test06"), folder / Path(TEST_FOLDERS["test06"]).name
    copy_file(source, target, ("verify_accuracy.txt",))
    copy_file(source, target / "accuracy", (ANSWERS_FILE,))
    copy_file(source, target / "performance" / "run_1", LOGS)


def put_code(folder: Path) -> None:
    """Copy this program without the submodule, tests and results."""
    for pattern in CODE:
        for path in filter(Path.is_file, ROOT.glob(pattern)):
            copy_file(path.parent, folder / path.parent.relative_to(ROOT), (path.name,))


def copy_file(source: Path, target: Path, names: Sequence[str]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        try:
            shutil.copyfile(source / name, target / name)
        except OSError as error:
            raise UsageError(f"{source / name}: {system_reason(error)}; a submission needs it.") from None
