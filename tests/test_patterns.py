"""What a load pattern is asked, and where: a boolean of a pattern is an `if` that its own file should have."""

import ast

from harness.config.patterns import LoadPattern
from tests.conftest import ROOT

BOOLEANS = {name for name, kind in LoadPattern.__annotations__.items() if "bool" in str(kind)}
OWN_FILES = {"config/patterns.py", "loadgen/patterns.py"}
# Each read elsewhere, with its reason: another package decides something that is none of the pattern's.
READS = {
    ("config/plan.py", "is_rated"): "only a rate that was given can take days",
    ("config/run.py", "is_streamed"): "an answer of one token has no time per token",
    ("engines/openai.py", "is_streamed"): "a server is tried as the run will ask it",
    ("engines/vllm.py", "is_streamed"): "vLLM is told whether answers are streamed",
    ("evaluation/compliance.py", "is_streamed"): "TEST06 looks for the first token",
    ("config/run.py", "is_own_clock"): "turns follow one another where the client sends",
    ("sweep/file.py", "is_rated"): "a sweep of rates has to name one",
    ("loadgen/test_run.py", "is_rated"): "a delay from the schedule",
    ("rates/points.py", "is_rated"): "a queue grows at a rate alone",
    ("benchmark/rounds.py", "is_rated"): "two servers at one rate are compared by latency",
    ("reporting/compare.py", "is_rated"): "speeds at a configured rate are not compared",
    ("results/economics.py", "is_rated"): "an INVALID rate is no capacity",
    ("results/metrics.py", "is_streamed"): "metrics of tokens",
    ("sweep/rows.py", "is_rated"): "speeds at a configured rate are not compared",
}


def test_booleans_of_a_pattern_are_asked_in_few_places() -> None:
    found = {}
    for path in sorted((ROOT / "harness").rglob("*.py")):
        name = str(path.relative_to(ROOT / "harness"))
        reads = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]
        asked_of = [node.attr for node in reads if node.attr in BOOLEANS and name not in OWN_FILES]
        found |= {(name, attribute): asked_of.count(attribute) for attribute in asked_of}
    assert found == dict.fromkeys(READS, 1)
    assert len(READS) <= 15


def test_no_pattern_is_told_by_its_type_elsewhere() -> None:
    classes = {"Burst", "Poisson", "Sequential", "ClosedLoop", "Schedule"}
    for path in (ROOT / "harness").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                assert not classes & {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}, path
