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
from harness.results.scoring import CUT_MARK
from harness.runs.run_folder import TEST_FOLDERS
from harness.submission.entries import Entry
from harness.submission.system_description import SERVER_FIELDS, Description

IMPLEMENTATION = "vllm"
LOGS = ("mlperf_log_summary.txt", "mlperf_log_detail.txt")
END_CHARACTERS = 4096  # characters of the accuracy log that a submission has, at each end
NOTES = Path("documentation") / "calibration.md"
CODE_PATTERNS = names_in(
    "*.py harness/**/*.py templates/**/* configs/* requirements*.txt pyproject.toml Makefile README.md"
)


def build(entries: Sequence[Entry], description: Description, system: str, out: Path) -> Path:
    """Write the submission of one system into `out` and return the folder division/submitter in it.

    `system` names the system in paths. Raises UsageError if the system is there already, or if a name or a file of a
    run cannot be used; `out` is then unchanged.
    """
    check_folder_name("--system", system)
    check_folder_name("--submitter", description["submitter"])
    base = out / str(description["division"]) / str(description["submitter"])
    if (base / "results" / system).exists():
        raise UsageError(f"{base / 'results' / system} already exists: remove it, or choose another --out.")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".new-") as temporary:  # a failed build leaves nothing
        new_tree = Path(temporary) / "tree"
        new_base = new_tree / base.relative_to(out)
        write_submission(entries, description, system, new_base)
        if (base / NOTES).exists():
            old_notes = read_text(base / NOTES).rstrip()
            _, _, new_notes = read_text(new_base / NOTES).partition("\n")  # without the heading, which is there already
            write_text(new_base / NOTES, f"{old_notes}\n\n{new_notes.lstrip()}")
        shutil.copytree(new_tree, out, dirs_exist_ok=True)  # only now that every file could be written
    return base


def write_submission(entries: Sequence[Entry], description: Description, system: str, base: Path) -> None:
    """Write the entries, the system's description and the notes on calibration below `base`."""
    for entry in entries:
        write_entry(entry, description, system, base)
    (base / "systems").mkdir(parents=True, exist_ok=True)
    write_json(base / "systems" / f"{system}.json", checker_description(description))
    (base / NOTES).parent.mkdir(exist_ok=True)
    write_text(base / NOTES, render("calibration.md.j2", entries=entries, system=system))


def write_entry(entry: Entry, description: Description, system: str, base: Path) -> None:
    """Write the files of an entry below `base`: results, measurements, TEST06 and the code.

    MLPerf v5.1 has another layout than later rounds, with folders of their own for compliance and measurements.
    """
    entry_path = Path(system) / entry.benchmark / entry.scenario
    results = base / "results" / entry_path
    if entry.config.round == "5.1":
        code = base / "code"
        compliance = base / "compliance" / entry_path
        measurements = base / "measurements" / entry_path / f"{system}_{IMPLEMENTATION}_{entry.scenario}.json"
    else:
        code = base / "src"
        compliance = results
        measurements = results / "measurements.json"
    write_results(entry, results)
    write_measurements(entry, description, measurements)
    copy_test06(entry, compliance)
    copy_code(code / entry.benchmark)


def checker_description(description: Description) -> Description:
    """Return the description without the SERVER_FIELDS, which the checker does not know.

    If they have values, these are added to the field for notes (sw_notes).
    """
    checker_fields = Description()
    for name, value in description.items():
        if name not in SERVER_FIELDS:
            checker_fields[name] = value
    server_texts = []
    for name in SERVER_FIELDS:
        if description.get(name):
            server_texts.append(str(description[name]))
    if server_texts:
        texts = ", ".join(server_texts)
        note = f"Declared, not recorded, of the server that LoadGen's client asks over HTTP: {texts}."
        checker_fields["sw_notes"] = joined_text(" ", str(checker_fields.get("sw_notes", "")), note)
    return checker_fields


def write_results(entry: Entry, folder: Path) -> None:
    """Write LoadGen's logs of both tests, the scores, and the accuracy log, shortened as MLPerf asks.

    Raises UsageError if a file is missing, or if the scores are not MLPerf's or of another log.
    """
    source, target = entry.accuracy.folder("accuracy"), folder / "accuracy"
    copy_files(source, target, LOGS)
    log = source / ANSWERS_FILE
    text = read_given("", log, "text", str, most=LARGEST_ACCURACY_LOG)
    sha256 = log_digest(log)
    rouge = entry.accuracy.scores
    if rouge.log and rouge.log != sha256:  # rouge.json has the hash of the log from which it was computed.
        raise UsageError(f"{log}: rouge.json was computed from another log.")
    try:
        scores = mlperf.ReferenceScores(**rouge.scores)
    except TypeError:
        names = ", ".join((*mlperf.ROUGE, "gen_len"))
        raise UsageError(f"{source}/rouge.json: its scores are not {names}.") from None
    write_text(target / "accuracy.txt", accuracy_txt(scores, rouge.samples, sha256))
    write_text(target / ANSWERS_FILE, shortened_log(text))  # accuracy.txt has the hash of the whole log.
    copy_files(entry.performance.folder("performance"), folder / "performance" / "run_1", LOGS)


def shortened_log(text: str) -> str:
    """Return the beginning and the end of an accuracy log, with a mark between them.

    MLPerf's truncate_accuracy_log shortens every log in this way, even if the log's two ends overlap. It fails for a
    log that is shorter than one end; here such a log is returned whole.
    """
    if len(text) < END_CHARACTERS:
        return text
    return text[:END_CHARACTERS] + CUT_MARK + text[-END_CHARACTERS:]


def write_measurements(entry: Entry, description: Description, path: Path) -> None:
    """Write how the result was made: the JSON for the checker, with a README and LoadGen's user.conf beside it."""
    copy_files(entry.performance.folder("performance"), path.parent, ("user.conf",))
    token_id_type = "int32"
    write_json(path, {"input_data_types": token_id_type, "retraining": "No", **weights_description(entry, description)})
    readme = render(
        "measurements.md.j2",
        entry=entry,
        config=entry.config,
        facts=entry.performance.facts,
        rouge=entry.accuracy.scores,
    )
    write_text(path.parent / "README.md", readme)


def weights_description(entry: Entry, description: Description) -> dict[str, str]:
    """Return the weights of a result by the checker's names: their file, their type, and how they were changed."""
    config, engine_state = entry.config, entry.performance.facts.plan.engine_state
    quantization = engine_state.quantization
    if config.endpoint:
        weights = str(description.get("served_weights") or "not declared")
        data_type = str(description.get("served_weight_data_type") or "not declared")
        change = "whatever the server makes of them"
    elif quantization == "none":
        weights, data_type, change = config.model, config.precision, "none"
    elif engine_state.quantized_checkpoint:
        weights, data_type, change = config.model, quantization, "as in the checkpoint"
    else:
        weights, data_type, change = config.model, quantization, f"quantized to {quantization} when loaded"
    return {
        "starting_weights_filename": weights,
        "weight_data_types": data_type,
        "weight_transformations": change,
    }


def copy_test06(entry: Entry, folder: Path) -> None:
    """Copy the files of TEST06 into a folder, if it was run."""
    if not entry.test06:
        return
    source = entry.test06.folder("test06")
    target = folder / Path(TEST_FOLDERS["test06"]).name
    copy_files(source, target, ("verify_accuracy.txt",))
    copy_files(source, target / "accuracy", (ANSWERS_FILE,))
    copy_files(source, target / "performance" / "run_1", LOGS)


def copy_code(folder: Path) -> None:
    """Copy the files of this program that CODE_PATTERNS names, without the submodule, tests and results."""
    for pattern in CODE_PATTERNS:
        for path in filter(Path.is_file, ROOT.glob(pattern)):
            copy_files(path.parent, folder / path.parent.relative_to(ROOT), (path.name,))


def copy_files(source: Path, target: Path, names: Sequence[str]) -> None:
    """Copy files from one folder into another, which is made if needed. Raises UsageError if one cannot be copied."""
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        try:
            shutil.copyfile(source / name, target / name)
        except OSError as error:
            raise UsageError(f"{source / name}: {system_reason(error)}; a submission needs it.") from None
