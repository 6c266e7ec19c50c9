"""A run that git, an editor or a Mac stored in another way: one line says in which, and nothing else of it differs."""

import codecs
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.commands import report
from harness.core.locations import ROOT
from harness.results import claims

RUN = ROOT / "docs" / "runs" / "demo"
TEXTS = sorted(
    path.relative_to(RUN)
    for path in RUN.rglob("*")
    if path.suffix in (".json", ".txt", ".csv", ".md", ".conf", ".html")
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUN, tmp_path / "run"))


def to_windows(text: bytes) -> bytes:
    return text.replace(b"\n", b"\r\n")


def with_mark(text: bytes) -> bytes:
    return codecs.BOM_UTF8 + text


def as_notepad(text: bytes) -> bytes:
    return with_mark(to_windows(text))


FORMS: dict[Callable[[bytes], bytes], tuple[str, ...]] = {
    to_windows: ("CRLF",),
    with_mark: ("byte order mark",),
    as_notepad: ("CRLF", "byte order mark"),
}


def said_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = report.check_run(folder)
    return code, capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("store", FORMS)
def test_a_run_that_was_stored_otherwise_is_one_line(
    store: Callable[[bytes], bytes], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in TEXTS:
        (folder / name).write_bytes(store((RUN / name).read_bytes()))
    code, lines = said_of(folder, capsys)
    assert code == 1 and len(lines) == 1 and all(word in lines[0] for word in FORMS[store]), lines


@pytest.mark.parametrize("name", TEXTS, ids=str)
@pytest.mark.parametrize("store", FORMS)
def test_each_file_that_was_stored_otherwise_is_named_by_its_form(
    store: Callable[[bytes], bytes], name: Path, folder: Path
) -> None:
    (folder / name).write_bytes(store((RUN / name).read_bytes()))
    lines = [str(claim) for claim in claims.differing(claims.verify_run(folder))]
    if name.parts[0] in claims.WITHOUT_DIGEST:
        assert lines == []  # they have no digest
    else:
        assert len(lines) == 1 and lines[0].startswith("1 files: ") and all(word in lines[0] for word in FORMS[store])


@pytest.mark.parametrize("store", FORMS)
def test_an_edit_beside_another_form_is_still_found(
    store: Callable[[bytes], bytes], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in TEXTS:
        (folder / name).write_bytes(store((RUN / name).read_bytes()))
    path = folder / "Performance" / "requests.csv"
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    code, lines = said_of(folder, capsys)
    assert code == 1 and any("Performance/requests.csv" in line for line in lines)


@pytest.mark.parametrize(
    "litter", ["._summary.json", ".DS_Store", "Performance/._requests.csv", "Thumbs.db", "desktop.ini"]
)
def test_what_a_mac_or_windows_leaves_beside_files_is_no_difference(
    litter: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / litter).write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X")
    assert said_of(folder, capsys) == (0, ["consistent"])


def test_another_file_that_came_later_is_a_difference(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "Performance" / "more.csv").write_text("1\n")
    code, lines = said_of(folder, capsys)
    assert code == 1 and any("more.csv" in line for line in lines)
