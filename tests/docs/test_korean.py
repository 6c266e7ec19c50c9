"""The Korean guide says what the English pages say: the same commands, flags, files, messages and bounds."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.generate import flags
from harness.commands.run import command as run
from tests.conftest import ROOT
from tests.docs.test_readme import ENGLISH, PAGES, blocks, named, prose, targets

README = ROOT / "README.ko.md"
GUIDE = sorted((ROOT / "docs" / "ko").glob("*.md"))
WORDS = 980
ORIGINALS = {  # what README.ko.md links: what README.md links in its place
    "docs/ko/accuracy.md": "docs/accuracy.md",
    "docs/ko/docker.md": "docs/clusters.md#docker",
    "docs/ko/flags.md": "docs/reference/flags.md",
    "docs/ko/mmlu.md": "docs/mmlu.md",
    "docs/ko/results.md": "docs/results.md",
}
ALONE = "docs/ko/start.md"  # the way in, which README.md has no page for
COMMENT = re.compile(r"(?:^| +)# (.*)$", re.M)  # in a block of code
PROGRAMS = ("python", "python3", "pip", "make", "docker", "llama31-mlperf", "export", "bench")
HANGUL = re.compile("[가-힣]")


def code(text: str) -> list[str]:
    """Fenced code, without its comments, which are translated."""
    return [COMMENT.sub("", block) for block in blocks(text)]


def spans(text: str) -> list[str]:
    """What stands between backticks in the prose, in any order: the languages put words differently."""
    return sorted(re.findall(r"`([^`\n]+)`", prose(text)))


def shape(text: str) -> list[str]:
    """Headings as their depth, list items and table rows as their kind, in order."""
    kinds = re.findall(r"^(#+ |- |\||!\[)", prose(text), re.M)
    return [kind.strip() for kind in kinds]


def programs(text: str) -> Iterator[str]:
    """What the commands in blocks of code call, as in `python -m harness doctor`, `pip install` and `make punkt`."""
    for block in code(text):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            words = line.removeprefix("$ ").split()
            if words[:1] and words[0] in PROGRAMS:
                yield " ".join(words[: 4 if "-m" in words[:2] else 2])


def option_names(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


def file_names(text: str) -> set[str]:
    """Without their folders, for a run's has its time for a name; without the links between pages."""
    plain = re.sub(r"\]\([^)]*\)", "]", text)
    return set(re.findall(r"(?<![\w.-])[\w-]+\.(?:csv|html|jsonl?|log|md|png|py|txt|yaml)\b", plain))


def section(link: str) -> str:
    """The page that a link leads to, or its section of that heading."""
    name, _, heading = link.partition("#")
    text = (ROOT / name).read_text()
    return text.partition(f"\n## {heading.capitalize()}\n")[2].partition("\n## ")[0] if heading else text


ORIGINAL = "\n".join(page.read_text() for page in PAGES if page not in (README, *GUIDE))


@pytest.mark.parametrize("aspect", [code, spans, shape])
def test_the_readmes_keep_step(aspect: object) -> None:
    assert aspect(README.read_text()) == aspect(ENGLISH)  # type: ignore[operator]


def test_the_readmes_links_are_the_same_and_lead_to_every_korean_page() -> None:
    links = targets(README.read_text())
    assert sorted({*ORIGINALS, ALONE} & {*links}) == [str(page.relative_to(ROOT)) for page in GUIDE]
    sections = [link for link in links if link.startswith("#")]
    english_links = targets(ENGLISH)
    assert len(sections) == sum(link.startswith("#") for link in english_links)
    pages = [ORIGINALS.get(link, link) for link in links if link != ALONE and link not in sections]
    assert sorted(pages) == sorted(link for link in english_links if not link.startswith("#"))


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.name)
def test_what_a_korean_page_names_stands_in_an_english_one(page: Path) -> None:
    text = page.read_text()
    said = {*spans(text), *programs(text), *option_names(text), *file_names(text)}
    assert len(said) > 10
    whole = " ".join(ORIGINAL.replace(r"\|", "|").split())  # as in a table, as elsewhere
    assert [each for each in sorted(said) if " ".join(each.replace(r"\|", "|").split()) not in whole] == []
    assert named(text) <= named(ORIGINAL)


@pytest.mark.parametrize(("page", "original"), [each for each in ORIGINALS.items() if "flags" not in each[0]])
def test_what_an_english_page_names_stands_in_the_korean_one(page: str, original: str) -> None:
    english, korean = section(original), (ROOT / page).read_text()
    assert option_names(english)
    assert option_names(english) <= option_names(korean)
    assert {*programs(english)} <= {*programs(korean)}


@pytest.mark.parametrize("page", [README, *GUIDE], ids=lambda page: page.name)
def test_comments_in_code_are_korean(page: Path) -> None:
    found = [comment for block in blocks(page.read_text()) for comment in COMMENT.findall(block)]
    assert [comment for comment in found if not HANGUL.search(comment)] == []


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.name)
def test_a_korean_page_is_short_begins_with_a_command_and_links_the_english_page(page: Path) -> None:
    text = page.read_text()
    assert len(text.split()) < WORDS
    assert "```" in text.partition("\n## ")[0] and "\n영어 문서: [" in text


def test_the_page_of_flags_has_those_of_the_help() -> None:
    declared = [each for each in dict.fromkeys(run.options_by_flag.values()) if {*run.basic} & {*each.opts}]
    wanted = {(name.replace("|", r"\|"), default) for name, default, _ in flags.rows(declared)}
    text = (ROOT / "docs" / "ko" / "flags.md").read_text()
    found = [(name, default.strip()) for name, default in re.findall(r"^\| (`--.*?`) \| (.*?)\| ", text, re.M)]
    assert len(found) == len(wanted) and {*found} == wanted


def test_exit_codes_and_messages_are_the_same() -> None:
    cells = [
        re.findall(r"^\| (\d+|[^|]*`[^|]*) \|", (ROOT / name).read_text(), re.M)
        for name in ("docs/results.md", "docs/ko/results.md")
    ]
    assert len(cells[0]) > 10
    assert {*cells[0]} <= {*cells[1]}


def test_a_comment_is_found_and_no_code_with_it() -> None:
    text = "```\n# on a line\nmake punkt   # after code\npython run.py --label a#1 \\\n  --dry-run\n```\n"
    assert code(text) == ["\nmake punkt\npython run.py --label a#1 \\\n  --dry-run\n"]
    assert [*programs(text)] == ["make punkt", "python run.py"]


NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


@pytest.mark.parametrize("page", [README, *GUIDE], ids=lambda page: page.name)
def test_every_figure_stands_in_an_english_page_or_in_a_kept_run(page: Path) -> None:
    pages = [ROOT / "README.md", *(path for path in (ROOT / "docs").rglob("*.md") if "ko" not in path.parts)]
    known = {number.rstrip(",") for path in pages for number in NUMBER.findall(path.read_text())}
    figures = {number.rstrip(",") for number in NUMBER.findall(prose(page.read_text()))}
    assert figures <= known
