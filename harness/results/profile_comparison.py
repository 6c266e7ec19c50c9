"""Profiles of several runs side by side."""

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter

from harness.results.kernel_profile import Profile

ProfileValue = str | float | None
PROFILE_COLUMNS = (  # name, label, and the field of a profile
    ("profile_s", "profile: window, s", "seconds"),
    ("profile_active_s", "profile: a kernel ran, s", "active_s"),
    ("profile_idle_percent", "profile: idle, %", "idle_percent"),
    ("profile_kernel_ms", "profile: mean kernel, ms", "mean_kernel_ms"),
    ("profile_gaps", "profile: gaps", "gaps"),
    ("profile_gap_ms", "profile: mean gap, ms", "mean_gap_ms"),
    ("profile_longest_gap_ms", "profile: longest gap, ms", "longest_gap_ms"),
    ("profile_long_gaps_ms", "profile: gaps over 1 ms together, ms", "long_gaps_ms"),
    ("profile_steps", "profile: steps", "steps"),
    ("profile_step_ms", "profile: from step to step, ms", "step_spacing_ms"),
)


ProfileRow = tuple[str, str, tuple[ProfileValue, ...]]  # name, label, and each run's value


def side_by_side(profiles: Sequence[Profile | None]) -> list[ProfileRow]:
    """Return the rows of a table that compares profiles: why each failed, each figure, and the time of each kind.

    Kinds are those of kernels. A run without a profile has None in every row.
    """
    filled_profiles = [profile or Profile() for profile in profiles]  # an empty profile for a run without one
    failures = tuple(profile.failure or None for profile in filled_profiles)
    rows: list[ProfileRow] = [("profile_failure", "profile: failed", failures)]
    for name, label, field in PROFILE_COLUMNS:
        rows.append((name, label, tuple(map(attrgetter(field), filled_profiles))))
    kinds = dict.fromkeys(chain.from_iterable(profile.shares for profile in filled_profiles))
    for kind in kinds:
        name = f"profile_{kind.replace(' ', '_')}_percent"
        shares = tuple(share_of(profile, kind) for profile in filled_profiles)
        rows.append((name, f"profile: {kind}, %", shares))
    return rows


def share_of(profile: Profile, kind: str) -> ProfileValue:
    """Return the percentage of the time that a kind of kernel took.

    0 if the profile has no such kernel. None if the run was not profiled: its profile is then empty, without a device.
    """
    if not profile.device:
        return None
    return profile.shares.get(kind, 0.0)
