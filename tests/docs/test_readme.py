"""What the README and the pages name exists: links, files, targets, flags; and the page of flags is current."""

import ast
import re
from pathlib import Path

import pytest

from docs.generate import flags, pictures
from harness.config import mlperf
from harness.config.run import RunConfig
from harness.core.given_values import flag_name
from harness.core.locations import ROOT
from harness.runner import doctor

ENGLISH = (ROOT / "README.md").read_text()
TOP = ("README.md", "README.ko.md", "CONTRIBUTING.md", "CHANGELOG.md")
RUNS = ROOT / "docs" / "runs"  # whose folders have pages of their own
PAGES = [
    *(ROOT / name for name in TOP),
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if RUNS not in page.parents),
]
FLAGS = (ROOT / "docs" / "reference" / "flags.md").read_text()
WORDS = 1400  # of the README: what does not fit has its own page
FOLDERS = "harness|docs|tests|benchmarks|configs|sweeps|demo|templates|third_party"
SCRIPTS = {f"harness/{path.name}" for path in ROOT.glob("*.py")}


def blocks(text: str) -> list[str]:
    """Fenced code, word by word."""
    return re.findall(r"^```\n(.*?)^```$", text, re.M | re.S)


def prose(text: str) -> str:
    return re.sub(r"^```\n.*?^```$", "", text, flags=re.M | re.S)


def targets(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("README")]


def anchors(text: str) -> set[str]:
    """The headings as GitHub links them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not link.startswith("https://"):
            assert target.exists(), link
            assert not anchor or anchor in anchors(target.read_text()), link


def rows_without_a_head(text: str) -> list[str]:
    """The rows of tables that an empty line cuts off their head, so that they are shown as text."""
    loose = []
    for table in re.findall(r"(?:^\|.*\n)+", prose(text), re.M):
        head, *rest = table.splitlines()
        if not rest or not re.fullmatch(r"[|: -]+", rest[0]):
            loose.append(head)
    return loose


def test_a_row_that_an_empty_line_cuts_off_is_found() -> None:
    assert rows_without_a_head("| a | b |\n|---|---|\n| 1 | 2 |\n\n| 3 | 4 |\n") == ["| 3 | 4 |"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_row_of_a_table_stands_under_its_head(page: Path) -> None:
    assert rows_without_a_head(page.read_text() + "\n") == []


def test_each_picture_is_drawn_by_a_command_and_shown() -> None:
    drawn = {*pictures.PICTURES, *pictures.PAGES, "h200-settings", "architecture", "mlflow-compare"}
    assert {path.stem for path in pictures.IMAGES.iterdir()} == drawn
    shown = {link for page in PAGES for link in re.findall(r"img/([\w-]+)\.png", page.read_text())}
    assert shown == drawn


def linked(page: Path) -> list[Path]:
    """The files of this repository that a page links to, but for sections of its own (`#NAME`)."""
    found = (link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", page.read_text()))
    return [(page.parent / name).resolve() for name in found if name and "://" not in name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_links_to_itself(page: Path) -> None:
    assert page not in linked(page)


def cells(page: str, row: str) -> list[str]:
    """The cells of the row of a page's table that begins with this."""
    (line,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", (ROOT / page).read_text(), re.M)
    return [cell.strip() for cell in line.split("|")]


@pytest.mark.parametrize("row", ["an NVIDIA GPU", "the CPU", "a running server"])
def test_the_page_of_installation_says_what_the_readme_says(row: str) -> None:
    (item,) = re.findall(rf"^- (?:or )?\*\*{row}\*\*: ((?:.+\n)(?:  .+\n)*)", ENGLISH, re.M)
    python, driver, disk, *_ = cells("docs/install.md", row)
    assert f"Python {python};" in item
    assert driver == "none" or f"driver {driver}," in item
    assert f"{disk} of disk" in item


def test_the_page_of_doctor_has_each_check() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| [^|]*\| ", (ROOT / "docs" / "doctor.md").read_text(), re.M)
    named = [name for row in rows[1:] for name in row.split(", ")]
    assert sorted(named) == sorted(check.name for check in doctor.CHECKS)


def test_no_page_is_an_orphan() -> None:
    reached = {target for page in PAGES for target in linked(page) if target != page}
    assert [page.name for page in PAGES if page not in reached] == []


def test_the_pages_of_evidence_are_few() -> None:
    assert len([*(ROOT / "docs" / "evidence").glob("*.md")]) <= 8


def named(text: str) -> set[str]:
    """The files of this repository that a page names: paths, scripts, modules; no patterns such as sweeps/FILE.yaml."""
    paths = set(re.findall(rf"(?<![\w./$-])(?:{FOLDERS})/[\w./-]*\w(?![\w*])", text))
    modules = re.findall(rf"`(?!(?:{FOLDERS})/)((?:[a-z]+/[a-z_]+|[a-z]+)\.py)`", text)
    paths |= {f"harness/{name}" for name in modules} - SCRIPTS
    paths |= set(re.findall(r"python3? (\w+\.py)\b", text)) | set(re.findall(r"-r (requirements\S*\.txt)", text))
    modules = re.findall(rf"python -m ((?:{FOLDERS})(?:\.\w+)*)", text)
    return {path for path in paths if not re.search(r"FILE|third_party/.", path)} | {
        module_path(name) for name in modules
    }


def module_path(name: str) -> str:
    path = name.replace(".", "/")
    return path if (ROOT / path).is_dir() else f"{path}.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    for name in named(page.read_text()):
        assert (ROOT / name).exists(), name


def test_files_are_found_in_a_page() -> None:
    text = "`docs/nothing.md`, sweeps/accuracy.yaml; `facts.py`; python -m benchmarks.search"
    text += "; python -m tests.support.fault_injection"
    assert named(f"python run.py --config {text} ../harness/x sweeps/FILE.yaml") == {
        *("run.py", "docs/nothing.md", "sweeps/accuracy.yaml", "harness/facts.py"),
        *("benchmarks/search.py", "tests/support/fault_injection.py"),
    }


def test_every_make_target_exists() -> None:
    makefile = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        wanted = re.findall(r"(?:`|^)make ([a-z0-9-]+)", page.read_text(), re.M)
        assert set(wanted) <= makefile, page.name


def test_what_make_hands_to_python_exists() -> None:
    codes = re.findall(r'\(PY\) -c "(.+)"$', (ROOT / "Makefile").read_text(), re.M)
    assert codes
    for code in codes:
        head, _, rest = code.partition(";")
        names: dict[str, object] = {}
        exec(head, names)
        used = [node for node in ast.walk(ast.parse(rest.strip())) if isinstance(node, ast.Attribute)]
        assert all(hasattr(names[node.value.id], node.attr) for node in used if isinstance(node.value, ast.Name))


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    assert len(ENGLISH.split()) < WORDS
    assert {f"docs/{page.name}" for page in PAGES if page.parent.name == "docs"} <= set(
        re.findall(r"\]\(([^)#]+)", ENGLISH)
    )


def test_the_readme_names_two_commands_that_set_a_machine_up() -> None:
    assert re.search(r"(?:`|^)make demo\b", ENGLISH, re.M) and re.search(r"(?:`|^)make test(?:`|$)", ENGLISH, re.M)


@pytest.mark.parametrize("page", ["docs/accuracy.md", "docs/ko/accuracy.md"])
def test_the_scores_and_limits_are_those_of_the_rules(page: str) -> None:
    text = (ROOT / page).read_text()
    for category in ("datacenter", "edge"):
        task = mlperf.OFFICIAL_TASKS[category]
        bounds = mlperf.bounds(task.reference, high_accuracy=False)
        assert f"{task.samples:,}" in text
        for name in mlperf.ROUGE:
            assert f"{getattr(task.reference, name):.4f}" in text and f"{bounds[name][0]:.4f}" in text
        for length in (task.reference.gen_len, *bounds["gen_len"]):
            assert f"{length:,.0f}" in text
    for row in mlperf.SCENARIOS.values():
        if row.limits:
            assert f"| TTFT {row.limits.ttft:,} ms, TPOT {row.limits.tpot:,} ms |" in text
        if row.offline_share:
            assert str(row.offline_share) in FLAGS


def test_the_flags_exist() -> None:
    own = {flag_name(name) for name in RunConfig.model_fields} | {"--config"}
    lines = re.findall(r"python run\.py.*", ENGLISH + FLAGS)
    named = {flag for line in lines for flag in re.findall(r" (--[a-z0-9-]+)", line)}
    assert len(named) > 5
    assert named <= own | {"--help", "--help-all", "--version"}


def test_the_page_of_flags_is_current() -> None:
    assert flags.PAGE.read_text() == flags.page(), "run python -m docs.generate.flags"


def written(page: Path) -> str:
    """A page without the parts that a module makes."""
    return re.sub(r"<!-- made by `python -m docs\.\w+` -->\n\n\|.*?<!-- end -->", "", page.read_text(), flags=re.S)


def test_pages_for_use_are_few_and_short() -> None:
    pages = sorted((ROOT / "docs").glob("*.md"))
    assert len(pages) <= 18
    assert {page.name: count for page in pages if (count := len(written(page).split())) >= 1100} == {}
    assert [page.name for page in pages if "What you get: " not in page.read_text()[:400]] == []
