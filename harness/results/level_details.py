"""The details of a run's own test, as far as they hold for a level that was tested several times."""

from harness.results import cost
from harness.results.cost import Capacity
from harness.results.figures import Figures
from harness.results.outcome import Outcome
from harness.results.test_details import TestDetails


def details_of_level(level: Outcome, own_details: TestDetails) -> TestDetails:
    """Return the details of the result at a level of concurrency that was tested several times.

    `own_details` are those of the run's own test, the last at this level. Its speeds, and what follows from them,
    become those of all tests together. How many requests kept the limits is known of each test only, so it is left out.
    """
    counted = own_details.counted
    total_tokens_per_sec = None
    if level.tokens_per_sec is not None and level.input_tokens_per_sec is not None:
        total_tokens_per_sec = level.tokens_per_sec + level.input_tokens_per_sec
    figures = counted.model_copy(
        update={
            "tokens_per_sec": level.tokens_per_sec,
            "input_tokens_per_sec": level.input_tokens_per_sec,
            "total_tokens_per_sec": total_tokens_per_sec,
            "samples_per_sec": level.samples_per_sec,
            "tokens_per_sec_per_user": level.tokens_per_sec_per_user,
            "slo_attainment": None,
            "goodput": None,
        }
    )
    price = own_details.cost.price_per_hour if own_details.cost else None
    changed = {
        "whole" if own_details.is_whole else "steady": figures,
        "cost": cost.cost(price, level.tokens_per_sec, total_tokens_per_sec, level.samples_per_sec),
        "capacity": capacity_of_level(level, own_details, counted),
    }
    return own_details.model_copy(update=changed)


def capacity_of_level(level: Outcome, own_details: TestDetails, counted: Figures) -> Capacity | None:
    """Return the capacity of the run's own test at the mean rate of all tests of its level.

    None if the capacity or a rate is not known. `counted` are the figures of the run's own test that count.
    """
    if own_details.capacity is None or not counted.samples_per_sec or not level.samples_per_sec:
        return None
    ratio = level.samples_per_sec / counted.samples_per_sec
    full_set_s = own_details.capacity.full_set_s
    return Capacity(
        requests_per_hour=own_details.capacity.requests_per_hour * ratio,
        requests_per_day=own_details.capacity.requests_per_day * ratio,
        full_set_s=full_set_s / ratio if full_set_s else None,
    )
