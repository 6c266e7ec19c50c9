"""`endpoints plan` in this process; what else there is to `endpoints`: tests/mlperf_endpoints."""

from importlib.util import find_spec

import pytest

from harness.commands import endpoints
from tests.conftest import called

pytestmark = pytest.mark.skipif(find_spec("submission_checker") is None, reason="the official package is not here")


@pytest.mark.parametrize(("lowest", "highest", "count"), [(1, 1024, 8), (32, 200, 7), (4, 20_000, 12)])
def test_the_plan_has_a_line_for_each_point(lowest: int, highest: int, count: int) -> None:
    words = ("--c-min", str(lowest), "--c-max", str(highest), "--points", str(count))
    done = called(lambda: endpoints.command(["plan", *words]), "endpoints")
    lines = done.stdout.splitlines()
    rows, (total, requests) = [line.split() for line in lines[1 : count + 1]], lines[count + 2 :]
    assert done.returncode == 0 and lines[count + 1] == ""
    levels = [int(row[0].replace(",", "")) for row in rows]
    assert (levels[0], levels[-1], len(set(levels))) == (lowest, highest, count) and levels == sorted(levels)
    minutes = [int(row[row.index("min") - 1]) for row in rows]
    assert minutes == [10 if level <= 32 else 20 for level in levels]
    assert total.startswith(f"{sum(minutes)} minutes")
    scored = sum(row[-1] == "yes" for row in rows)
    assert scored and requests.startswith(f"{count + scored} x 13,368 ")


def test_points_that_the_rules_do_not_have_are_refused() -> None:
    assert called("endpoints", "endpoints", "plan", "--c-min", "33").returncode == 2
    assert called("endpoints", "endpoints", "plan", "--points", "6").returncode == 2
