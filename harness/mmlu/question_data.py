"""MMLU's questions: 57 subjects in four domains, from CSVs, parquet, `datasets` folders or the hub."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from harness.core import given_values, reading
from harness.core.errors import UsageError
from harness.core.file_limits import LARGEST_QUESTIONS
from harness.core.formatting import plural
from harness.core.message_text import first_line, system_reason
from harness.core.stored_text import LFS_POINTER, data_files, is_lfs_pointer
from harness.workloads.hub import download, read_saved

LETTERS = "ABCD"
MOST_ROWS = 10**6  # rows of a Parquet file; more are not MMLU's questions
MMLU_DATASET = ("cais/mmlu", "all")  # the repository on the hub, and its configuration
HUB = "/".join(MMLU_DATASET)

# The domains of the paper (Hendrycks et al., 2021). lm-eval differs from them in anatomy, which it puts into STEM.
SUBJECT_NAMES = {
    "STEM": """abstract_algebra astronomy college_biology college_chemistry college_computer_science
        college_mathematics college_physics computer_security conceptual_physics electrical_engineering
        elementary_mathematics high_school_biology high_school_chemistry high_school_computer_science
        high_school_mathematics high_school_physics high_school_statistics machine_learning""",
    "Humanities": """formal_logic high_school_european_history high_school_us_history high_school_world_history
        international_law jurisprudence logical_fallacies moral_disputes moral_scenarios philosophy prehistory
        professional_law world_religions""",
    "Social Sciences": """econometrics high_school_geography high_school_government_and_politics
        high_school_macroeconomics high_school_microeconomics high_school_psychology human_sexuality
        professional_psychology public_relations security_studies sociology us_foreign_policy""",
    "Other": """anatomy business_ethics clinical_knowledge college_medicine global_facts human_aging management
        marketing medical_genetics miscellaneous nutrition professional_accounting professional_medicine
        virology""",
}
DOMAINS = {domain: names.split() for domain, names in SUBJECT_NAMES.items()}
DOMAIN_OF = dict[str, str]()  # the domain of each subject
for _domain, _subjects in DOMAINS.items():
    DOMAIN_OF |= dict.fromkeys(_subjects, _domain)
SUBJECTS = sorted(DOMAIN_OF)
COLUMNS = ("question", "choices", "answer")  # the columns that every row must have
StoredQuestion = tuple[str, Mapping[str, Any]]  # the place of a row, for an error message, and its columns


class Question(NamedTuple):
    """One question with its four choices."""

    subject: str
    number: int  # its index among the questions of its subject and split
    text: str
    choices: tuple[str, ...]
    answer: int  # the index of the right choice


QuestionsBySubject = dict[str, list[Question]]


class QuestionSet(NamedTuple):
    """The questions to ask, ordered by subject, and the examples shown before each."""

    test: list[Question]
    examples: QuestionsBySubject
    test_questions: int  # the number of all test questions of the chosen subjects, asked or not
    source: str


def chosen_subjects(text: str) -> list[str]:
    """Return the subjects in a comma-separated list of subjects and domains, each once and in order of the alphabet.

    Raises UsageError for a name that MMLU does not have, and for an empty list.
    """
    subjects_by_group = {"all": SUBJECTS}
    for domain, names in DOMAINS.items():
        subjects_by_group[domain.lower().replace(" ", "_")] = names
    chosen = set[str]()
    for item in text.split(","):
        word = item.strip().lower().replace(" ", "_")
        if not word:  # such as after a comma at the end
            continue
        if word not in subjects_by_group and word not in DOMAIN_OF:
            hint = given_values.spelling_hint(word, [*subjects_by_group, *SUBJECTS])
            raise UsageError(f"--subjects: MMLU has no subject {word!r}{hint}")
        chosen.update(subjects_by_group.get(word, [word]))  # all subjects of a group, or a single subject
    if not chosen:
        raise UsageError("--subjects takes names of subjects or domains, with commas between them.")
    return sorted(chosen)


def load_questions(path: Path | None, subjects: Sequence[str], shots: int, limit: int | None, seed: int) -> QuestionSet:
    """Return the questions to ask, and the first `shots` dev questions of each subject as examples.

    Without a `path`, the questions come from the hub. Raises UsageError if a subject has too few questions, or a file
    cannot be read.
    """
    source = str(path or HUB)
    test = questions_by_subject(read_rows(path, "test", subjects), subjects)
    dev = QuestionsBySubject()
    if shots:
        dev = questions_by_subject(read_rows(path, "dev", subjects), subjects)
    examples = QuestionsBySubject()
    for subject in subjects:
        if not test[subject]:
            raise UsageError(f"{source}: no test questions for {subject}; --subjects names those to use.")
        if not shots:  # The prompts have no examples.
            continue
        count = len(dev[subject])
        if count < shots:
            raise UsageError(
                f"{source}: {subject} has {plural(count, 'dev question')}; --num-fewshot {shots} needs {shots}."
            )
        examples[subject] = dev[subject][:shots]
    question_count = sum(map(len, test.values()))
    return QuestionSet(spread_sample(test, limit, seed), examples, question_count, source)


def spread_sample(test: QuestionsBySubject, limit: int | None, seed: int) -> list[Question]:
    """Return `limit` questions, or all if it is None, drawn from each subject in proportion to the subject's size.

    The questions of a smaller limit are a part of those of a larger one. The order is by subject and number.
    """
    places = []
    for subject, questions in test.items():
        rng = Random(f"{seed} {subject}")
        offset = rng.random()
        shuffled = rng.sample(questions, len(questions))
        for number, question in enumerate(shuffled):
            # The places of a subject are spread evenly over [0, 1).
            place = (number + offset) / len(questions)
            places.append((place, question))
    places.sort()
    return sorted(question for _place, question in places[:limit])


def questions_by_subject(rows: Iterator[StoredQuestion], subjects: Sequence[str]) -> QuestionsBySubject:
    """Return the questions of each subject in their stored order. Rows of other subjects are left out.

    `rows` has each row's columns, with its place in the data for error messages. Raises UsageError if a question is not
    valid.
    """
    questions: QuestionsBySubject = {subject: [] for subject in subjects}
    for where, record in rows:
        questions_of_subject = questions.get(record["subject"])
        if questions_of_subject is not None:
            questions_of_subject.append(check_question(where, record, len(questions_of_subject)))
    return questions


def check_columns(where: str, record: Mapping[str, Any]) -> None:
    """Raise UsageError if a row lacks one of COLUMNS, as a row of another data set does, such as MMLU-Pro.

    `where` is the place of the row, for the message.
    """
    for column in COLUMNS:
        if column not in record:
            raise UsageError(f"{where} has no column {column!r}; it has {', '.join(record)}: not MMLU's questions.")


def check_question(where: str, record: Mapping[str, Any], number: int) -> Question:
    """Return a row as a question. In the row, the answer may be a letter or an index.

    `number` is the question's index in its subject. Raises UsageError if the row is not valid.
    """
    check_columns(where, record)
    text, choices, answer = record["question"], record["choices"], record["answer"]
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"{where} contains no question.")
    has_four = isinstance(choices, list) and len(choices) == 4
    if not has_four or not all(isinstance(choice, str) for choice in choices):
        raise UsageError(f"{where} does not have four choices.")
    index = answer
    if isinstance(answer, str) and len(answer) == 1:
        index = LETTERS.find(answer)  # -1 if it is none of the letters
    if type(index) is not int or not 0 <= index < 4:
        raise UsageError(f"{where}: the answer is {answer!r}, not one of A, B, C, D (or 0 to 3).")
    return Question(record["subject"], number, text, tuple(choices), index)


def read_rows(path: Path | None, split: str, subjects: Sequence[str]) -> Iterator[StoredQuestion]:
    """Yield the rows of a split, such as test, from a folder in any known form, or from the hub if `path` is None.

    Rows of other subjects may be among them. Raises UsageError if there are no questions of this split.
    """
    if not path:
        records = download(*MMLU_DATASET, split).to_list()
        yield from rows_of_records(records, source=HUB, folder="")
        return
    if not path.is_dir():
        raise UsageError(f"--dataset-path {path}: no such folder.")
    for root in (path, path / "data"):
        rows = folder_rows(root, split, subjects)
        if rows is not None:
            yield from rows
            return
    raise UsageError(
        f"--dataset-path {path}: no {split} questions in it: expected {split}/SUBJECT_{split}.csv, "
        f"all/{split}-*.parquet, SUBJECT/{split}-*.parquet, or folders saved by `datasets`."
    )


def folder_rows(root: Path, split: str, subjects: Sequence[str]) -> Iterator[StoredQuestion] | None:
    """Return the rows of a split from the files in a folder; None if the folder has no files of a known form.

    Known forms are folders that `datasets` saved, the original CSV files, and Parquet files.
    """
    folders = saved_folders(root)
    if folders:
        return rows_of_saved_folders(folders, split)
    tables = csv_files(root, split)
    if tables:
        return rows_of_csv(tables, split)
    tables = parquet_files(root, split, subjects)
    if tables:
        return rows_of_parquet(tables)
    return None


def saved_folders(root: Path) -> list[Path]:
    """Return the folders that `datasets` saved: `root` itself or, if it is not one of them, the ones in `root`."""
    files = sorted(root.glob("dataset_dict.json")) or sorted(root.glob("*/dataset_dict.json"))
    return [file.parent for file in files]


def rows_of_saved_folders(folders: Sequence[Path], split: str) -> Iterator[StoredQuestion]:
    """Yield the rows of a split in folders that `datasets` saved."""
    for folder in folders:
        records = read_saved(folder, split).to_list()
        yield from rows_of_records(records, f"{folder}/{split}", folder.name)


def csv_files(root: Path, split: str) -> list[Path]:
    """Return the original CSV files of a split; if there are none, the compressed ones."""
    pattern = f"{split}/*_{split}.csv"
    return data_files(root, pattern) or data_files(root, f"{pattern}.gz")


def rows_of_csv(tables: Sequence[Path], split: str) -> Iterator[StoredQuestion]:
    """Yield the rows of the original CSV files. They have no header; a row is a question, four choices and a letter.

    The subject is that of the file's name. Raises UsageError if a file cannot be read or a row has other columns.
    """
    for table in tables:
        subject = table.name.removesuffix(".gz").removesuffix(f"_{split}.csv")
        try:
            with reading.open_regular(table, LARGEST_QUESTIONS) as file:
                for number, cells in enumerate(csv.reader(file), start=1):
                    where = f"{table}: row {number}"
                    if len(cells) != 6:
                        raise UsageError(f"{where} has {plural(len(cells), 'column')}, not 6.")
                    question, *choices, answer = cells
                    columns = {"subject": subject, "question": question, "choices": choices, "answer": answer.strip()}
                    yield where, columns
        except OSError as error:
            raise UsageError(f"{table}: {system_reason(error)}.") from None
        except csv.Error as error:
            raise UsageError(f"{table}: cannot be read as CSV: {error}.") from None


def parquet_files(root: Path, split: str, subjects: Sequence[str]) -> list[Path]:
    """Return the Parquet files of a split in the layout of the hub.

    On the hub, the folder `all` has the questions of all subjects. If there is no such folder, each subject has a
    folder.
    """
    # The user may also have named the folder `all` itself, whose files are then directly in `root`.
    tables = data_files(root, f"all/{split}-*.parquet") or data_files(root, f"{split}-*.parquet")
    if tables:
        return tables
    for subject in subjects:
        tables += data_files(root, f"{subject}/{split}-*.parquet")
    return tables


def rows_of_parquet(tables: Sequence[Path]) -> Iterator[StoredQuestion]:
    """Yield the rows of Parquet files.

    Raises UsageError if a file cannot be read, is only a pointer of Git LFS, or has more rows than MMLU can have.
    """
    from pyarrow import ArrowException, parquet  # type: ignore[import-untyped]

    for table in tables:
        try:
            reading.check_regular(table.stat(), table, LARGEST_QUESTIONS)
            if is_lfs_pointer(table):
                raise UsageError(f"{table}: {LFS_POINTER}.")
            count = parquet.read_metadata(table).num_rows
            if count > MOST_ROWS:
                raise UsageError(f"{table}: {plural(count, 'row')}; MMLU has 14,042 questions.")
            records = parquet.read_table(table).to_pylist()
        except (OSError, ArrowException) as error:
            raise UsageError(f"{table}: cannot be read as parquet: {first_line(error)}") from None
        yield from rows_of_records(records, str(table), table.parent.name)


def rows_of_records(records: Sequence[Mapping[str, Any]], source: str, folder: str) -> Iterator[StoredQuestion]:
    """Yield rows that have COLUMNS, each with its place and its subject, which may be the folder's name.

    Raises UsageError if one of COLUMNS is missing, or if neither the record nor the folder tells the subject.
    """
    for number, record in enumerate(records):
        where = f"{source}: row {number}"
        check_columns(where, record)
        subject = record.get("subject") or folder
        if subject not in DOMAIN_OF and "subject" not in record:
            raise UsageError(f"{where} has no column 'subject', and its folder {folder!r} is no subject of MMLU's.")
        yield where, {**record, "subject": subject}
