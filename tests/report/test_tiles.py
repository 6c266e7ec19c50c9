"""The tiles at the head of report.html: each of them says something, or is not there."""

import re
from pathlib import Path
from typing import Any

import pytest

from harness.loadgen.recording import FILE
from harness.report import report as rendering
from tests import made


def tiles(folder: Path) -> dict[str, str]:
    """Heading and text of each."""
    rendering.build(folder)
    found = re.findall(
        r'<section class="tile">\s*<h3>(.*?)</h3>(.*?)</section>', (folder / "report.html").read_text(), re.S
    )
    return {re.sub(r"<.*", "", head, flags=re.S): text for head, text in found}


@pytest.mark.parametrize(
    ("settings", "recorded", "wanted"),
    [
        ({}, False, ["Speed"]),
        ({"price_per_hour": 2.0}, False, ["Speed", "Cost and energy"]),
        ({}, True, ["Speed", "Bounded by"]),
        ({"price_per_hour": 1.0}, True, ["Speed", "Cost and energy", "Bounded by"]),  # as make demo has them
        (
            {"scenario": "server", "server_target_qps": 8.5},
            False,
            ["Speed", "Latency against the limits", "Cost and energy"],  # the last has the field for a price
        ),
    ],
)
def test_a_tile_with_nothing_to_say_is_left_out(
    tmp_path: Path, settings: dict[str, Any], recorded: bool, wanted: list[str]
) -> None:
    folder = made.run(tmp_path / "run", **settings)
    if recorded:
        rows = [f"{second},{second % 7 * 10}" for second in range(1, 9)]
        (folder / "Performance" / FILE).write_text("\n".join(["seconds,cpu_percent", *rows]) + "\n")
    found = tiles(folder)
    assert list(found) == wanted
    for text in found.values():
        assert 'id="price"' in text or not ('<p class="big">\N{EN DASH}' in text or "not measured" in text)
