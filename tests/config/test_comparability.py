"""What keeps the numbers of two runs from being compared."""

from typing import Any

import pytest

from harness.config.comparability import CONFIGURED_RATE, GATE_FAILED, INVALID, Comparable, differences, reason
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core.system import System
from harness.report import compare_page
from harness.submission import entries

WORK = RunConfig().work
ONE = Comparable(work=WORK, settings={"precision": "bf16"}, machine={"gpus": "none"}, rate={"target_qps": 8.0})


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, ""),
        ({"work": WORK | {"scenario": "server"}}, "different work (--scenario)"),
        ({"work": WORK | {"max_new_tokens": 64, "category": "edge"}}, "different work (--category, --max-new-tokens)"),
        ({"work": {name: WORK[name] for name in WORK if name != "workload"}}, "different work (--workload)"),
        ({"settings": {"precision": "fp16"}}, ""),
        ({"machine": {"gpus": "card"}}, ""),
        ({"rate": {"target_qps": 9.0}}, ""),
        ({"busyness": {"others at work": True}}, "the machine was busy in C"),
        ({"validity": {INVALID: True, GATE_FAILED: True}}, f"C: {INVALID}; C: {GATE_FAILED}"),
        ({"validity": {CONFIGURED_RATE: True}}, f"C: {CONFIGURED_RATE}"),
    ],
)
def test_speeds_have_a_ratio_only_where_they_can_be_compared(changed: dict[str, Any], why: str) -> None:
    found = differences(ONE, ONE._replace(**changed), compare_page.IGNORED_IN_COMPARISON)
    assert reason(found, ("A", "C")) == why and bool(found) == bool(why)


def test_a_flaw_of_both_is_one_and_is_told_once() -> None:
    flawed = ONE._replace(validity={CONFIGURED_RATE: True})
    assert reason(differences(flawed, flawed), ("A", "B")) == f"A and B: {CONFIGURED_RATE}"
    assert not differences(flawed, flawed, (CONFIGURED_RATE,))


@pytest.mark.parametrize(("rate", "alike"), [(8.0, True), (8.08, True), (7.93, True), (8.09, False), (None, False)])
def test_a_rate_is_the_same_within_a_percent(rate: float | None, alike: bool) -> None:
    assert (not differences(ONE, ONE._replace(rate={} if rate is None else {"target_qps": rate}))) == alike


def test_the_settings_are_all_flags_that_answers_or_speed_depend_on_and_what_the_engine_made() -> None:
    plan = resolve(RunConfig(precision="fp16"), [], 0)
    assert {*RunConfig.flags_by_effect("answers", "speed")} <= {*plan.settings}
    assert plan.settings["precision"] == "fp16"  # not None, which the engine says where it has nothing to add
    assert plan.settings["max_model_len"] == 2668 and plan.settings["prefix_caching"] is False
    assert {*entries.LOADGEN_FLAGS} < {*plan.settings}


def test_a_setting_that_one_run_did_not_record_is_no_difference() -> None:
    gpus = {"gpus": ["NVIDIA H200"], "gpu_settings": {"power limit": "700 W", "vboost": "1"}}
    new, old = Comparable.of_machine(System(**gpus)), Comparable.of_machine(System(gpus=["NVIDIA H200"]))
    assert not differences(new, old)
    lower = Comparable.of_machine(System(**gpus | {"gpu_settings": {"power limit": "500 W"}}))
    assert [(each.name, each.a, each.b) for each in differences(new, lower)] == [("power limit", "700 W", "500 W")]
