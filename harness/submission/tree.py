"""Entries -> the folders of a submission, as MLPerf v5.1, v6.0 and v6.1 lay them out.

Sources: submission_structure.md, the paths in the constants of the submission checker, and truncate_accuracy_log.py
(all in tools/submission of mlcommons/inference). Where text and checker differ - the folder of the code is `code` in
v5.1, for v6 the text still says so but the checker wants `src` - the checker is right.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.common import reading
from harness.common.coerce import read_given
from harness.common.errors import UsageError, why
from harness.common.files import check_folder_name, write_json, write_text
from harness.common.markdown import render
from harness.common.paths import ROOT
from harness.config import mlperf
from harness.evaluation.accuracy import accuracy_txt, digest
from harness.runs.folder import FOLDER
from harness.submission.entries import Entry, SubmittedRun

IMPLEMENTATION = "vllm"
LOGS = ("mlperf_log_summary.txt", "mlperf_log_detail.txt")
ACCURACY_LOG = "mlperf_log_accuracy.json"
KEPT_CHARACTERS = 4096  # of the accuracy log, at each end
GAP = "\n\n...\n\n"
NOTES = Path("documentation") / "calibration.md"
CODE = (
    *("*.py", "harness/**/*.py", "templates/**/*", "configs/*"),
    *("requirements*.txt", "pyproject.toml", "Makefile", "README.md"),
)


def build(entries: Sequence[Entry], description: Mapping[str, object], system: str, out: Path) -> Path:
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
        fill(entries, description, system, whole / base.relative_to(out))
        if (base / NOTES).exists():  # what an earlier build, or a person, wrote of other systems comes first
            notes = whole / base.relative_to(out) / NOTES
            before, new = reading.read_text(base / NOTES).rstrip(), reading.read_text(notes).partition("\n")[2]
            write_text(notes, f"{before}\n\n{new.lstrip()}")
        shutil.copytree(whole, out, dirs_exist_ok=True)
    return base


def fill(entries: Sequence[Entry], description: Mapping[str, object], system: str, base: Path) -> None:
    for entry in entries:
        where = Path(system) / entry.benchmark / entry.scenario
        results = base / "results" / where
        put_results(entry, results)
        if entry.config.round == "5.1":
            name = f"{system}_{IMPLEMENTATION}_{entry.scenario}.json"
            put_measurements(entry, base / "measurements" / where / name)
            put_test06(entry, base / "compliance" / where)
            put_code(base / "code" / entry.benchmark)
        else:
            put_measurements(entry, results / "measurements.json")
            put_test06(entry, results)
            put_code(base / "src" / entry.benchmark)
    (base / "systems").mkdir(parents=True, exist_ok=True)
    write_json(base / "systems" / f"{system}.json", description)
    (base / NOTES).parent.mkdir(exist_ok=True)
    write_text(base / NOTES, render("calibration.md.j2", entries=entries, system=system))


def put_results(entry: Entry, folder: Path) -> None:
    """LoadGen's logs of both tests, the scores, and the accuracy log cut as MLPerf asks."""
    source, target = entry.accuracy.folder("accuracy"), folder / "accuracy"
    copy(source, target, LOGS)
    log = source / ACCURACY_LOG
    text = read_given("", log, "text", str)
    found = digest(log)
    rouge = entry.accuracy.scores
    if (rouge.log or found) != found:
        raise UsageError(f"{log}: rouge.json was computed from another log.")
    write_text(target / "accuracy.txt", accuracy_txt(scores_of(entry.accuracy), rouge.samples, found))
    write_text(target / ACCURACY_LOG, truncate(text))
    copy(entry.performance.folder("performance"), folder / "performance" / "run_1", LOGS)


def scores_of(run: SubmittedRun) -> mlperf.Scores:
    """Raises UsageError where rouge.json lacks one."""
    try:
        return mlperf.Scores(**run.scores.scores)
    except TypeError:
        wanted = ", ".join((*mlperf.ROUGE, "gen_len"))
        raise UsageError(f"{run.folder('accuracy')}/rouge.json: its scores are not {wanted}.") from None


def truncate(text: str) -> str:
    """Beginning and end of an accuracy log; its hash in accuracy.txt is that of the whole."""
    if len(text) < KEPT_CHARACTERS:
        return text
    return text[:KEPT_CHARACTERS] + GAP + text[-KEPT_CHARACTERS:]


def put_measurements(entry: Entry, path: Path) -> None:
    """How the result was made: the JSON that the checker reads; a README and LoadGen's user.conf lie beside it."""
    config = entry.config
    copy(entry.performance.folder("performance"), path.parent, ("user.conf",))
    engine_state = entry.performance.facts.plan.engine_state
    kind = engine_state.quantization
    quantized = "as in the checkpoint" if engine_state.quantized_checkpoint else f"quantized to {kind} when loaded"
    write_json(
        path,
        {
            "input_data_types": "int32",  # token ids
            "retraining": "No",
            "starting_weights_filename": config.model,
            "weight_data_types": config.precision if kind == "none" else kind,
            "weight_transformations": "none" if kind == "none" else quantized,
        },
    )
    facts, rouge = entry.performance.facts, entry.accuracy.scores
    page = render("measurements.md.j2", entry=entry, facts=facts, config=config, rouge=rouge)
    write_text(path.parent / "README.md", page)


def put_test06(entry: Entry, folder: Path) -> None:
    if entry.test06 is None:
        return
    source, target = entry.test06.folder("test06"), folder / Path(FOLDER["test06"]).name
    copy(source, target, ("verify_accuracy.txt",))
    copy(source, target / "accuracy", (ACCURACY_LOG,))
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
