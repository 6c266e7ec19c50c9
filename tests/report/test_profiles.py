"""Profiles side by side."""

from harness.results.kernel_profile import Profile, Share
from harness.results.profile_comparison import side_by_side


def profile(**percent: float) -> Profile:
    kinds = [Share(name=name, kind=name, ms=share, percent=share, calls=1) for name, share in percent.items()]
    return Profile(device="GPU", seconds=2.0, active_s=1.5, idle_percent=25.0, mean_kernel_ms=0.1, gaps=3, kinds=kinds)


def test_every_kind_of_either_has_a_line_and_what_was_not_measured_is_empty() -> None:
    told = {
        label: values
        for _, label, values in side_by_side(
            [profile(attention=60.0, norms=40.0), None, profile(attention=100.0), Profile(failure="no trace")]
        )
    }
    assert told["profile: attention, %"] == (60.0, None, 100.0, None)
    assert told["profile: norms, %"] == (40.0, None, 0.0, None)
    assert told["profile: a kernel ran, s"] == (1.5, None, 1.5, None)
    assert told["profile: failed"] == (None, None, None, "no trace")


def test_without_profiles_there_is_nothing_to_show() -> None:
    assert all(not any(values) for _, _, values in side_by_side([None, None]))
