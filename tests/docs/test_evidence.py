"""Each page of evidence says which of the runs behind it are kept."""

import re

from harness.core.locations import ROOT


def test_each_page_of_evidence_says_which_runs_are_kept() -> None:
    for page in sorted((ROOT / "docs" / "evidence").glob("*.md")):
        text = page.read_text()
        links = [target for target in re.findall(r"\]\(\.\./runs/?([^)#]*)\)", text) if target]
        assert page.name == "limits.md" or "kept runs" in text.lower(), page.name
        assert all((ROOT / "docs" / "runs" / target).exists() for target in links), page.name
