"""What came from outside stands in pages and on terminals as text, and as nothing else."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from harness.core import files, last_screen, markdown, templates
from harness.core.errors import EndpointError, UsageError, one_line_errors
from harness.core.progress import Display
from harness.report import answer
from harness.report import report as rendering
from harness.runs import ending
from harness.runs.run_folder import RunFolder
from tests.support import example_runs

ESCAPE = "\x1b]0;owned\x07\x1b[2J"
HTML = "<img src=x onerror=alert(1)>"
KEY = "sk-" + "neverwritethisdown"


def test_a_report_holds_no_html_no_escapes_and_no_lines_of_others(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", endpoint="http://h/v1")
    server = f"vLLM {HTML}{ESCAPE}\n\n# A heading | a cell ![x](http://tracker/x)"
    example_runs.note(
        RunFolder(tmp_path, "run"),
        command=f"python run.py --model 'a\n```\n{HTML}'",
        engine_args={"server": server, "serves": "demo", "exchange": "text in", "max_in_flight": 64},
    )
    rendering.build_report(folder)
    page = (folder / "report.md").read_text()
    assert "<img" not in page.replace(f"--model 'a ``` {HTML}'", "")  # a code fence shows it as it is
    assert "\x1b" not in page and "\x07" not in page
    assert not [line for line in page.splitlines() if line.startswith("# A heading")]
    assert "![x](" not in page
    assert page.count("\n````\n") == 2


def test_an_index_holds_no_html(tmp_path: Path) -> None:
    lines = SimpleNamespace(run="a", model=f"{HTML}\n# b", category="", scenario="", workload="summarization", label="")
    lines.gpus, lines.verdict, lines.result = [], "", "VALID"
    lines.weights, lines.precision, lines.quantization = HTML, "", ""
    lines.is_disputed = False
    lines.valid, lines.comparable, lines.background_load, lines.metric = True, True, [], lambda name: 1.0
    page = templates.render("index.md.j2", runs=[(lines, True)], metrics=[])
    assert "<img" not in page and "&lt;img" in page
    assert "\n# b" not in page


def test_quotations_stay_what_they_are() -> None:
    assert markdown.block_quote(f"one\n{HTML}") == f"one\n> &lt;{HTML[1:]}"
    assert markdown.escape_markdown("p99 < 2 s, 3 > 2, [a] and (b)") == "p99 < 2 s, 3 > 2, [a] and (b)"


def console() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, highlight=False, width=200), file


def test_a_terminal_obeys_nobody_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    screen, file = console()
    Display(screen).say(f"a{ESCAPE}b")
    run = RunFolder(tmp_path, "run")
    run.path.mkdir()
    ending.fail(EndpointError(f"http://h answered 500: a{ESCAPE}b"), run, screen)
    summary = example_runs.rendered(tmp_path / "made")
    odd = summary.meta.model_copy(update={"model": f"[bold]{ESCAPE}"})
    last_screen.show(screen, answer.document(summary.model_copy(update={"meta": odd})))
    with pytest.raises(SystemExit), one_line_errors():
        raise UsageError(f"--model a{ESCAPE}b")
    shown = file.getvalue() + "".join(capsys.readouterr())
    assert "\x1b" not in shown and "\x07" not in shown
    assert "[bold]" in shown


def test_a_key_of_the_environment_is_neither_shown_nor_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key := "plain words of a key 1")
    screen, file = console()
    Display(screen).say(f"the server says {key}")
    run = RunFolder(tmp_path, "run")
    run.path.mkdir()
    ending.fail(EndpointError(f"http://h answered 500: {key}"), run, screen)
    files.write_text(tmp_path / "report.md", f"engine: {key}")
    files.write_json(tmp_path / "config.json", {"server": key})
    written: list[Any] = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert key not in file.getvalue() + "".join(written) + "".join(capsys.readouterr())
