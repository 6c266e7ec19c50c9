"""Profiles of several runs side by side."""

from collections.abc import Sequence

from harness.results.kernel_profile import Profile

# Profiles side by side.
ProfileValue = str | float | None
PROFILE_COLUMNS = (  # name, label, and the field of a profile
    ("profile_s", "profile: window, s", "seconds"),
    ("profile_active_s", "profile: a kernel ran, s", "active_s"),
    ("profile_idle_percent", "profile: idle, %", "idle_percent"),
    ("profile_kernel_ms", "profile: mean kernel, ms", "mean_kernel_ms"),
    ("profile_gaps", "profile: gaps", "gaps"),
    ("profile_gap_ms", "profile: mean gap, ms", "mean_gap_ms"),
)


def side_by_side(profiles: Sequence[Profile | None]) -> list[tuple[str, str, tuple[ProfileValue, ...]]]:
    """Name, label and each run's value, the kinds by what they take in the first profile; None where there is none."""
    found = [profile or Profile() for profile in profiles]
    kinds = dict.fromkeys(kind for profile in found for kind in profile.shares)
    return [
        ("profile_failure", "profile: failed", tuple(each.failure or None for each in found)),
        *((name, label, tuple(getattr(each, field) for each in found)) for name, label, field in PROFILE_COLUMNS),
        *(
            (
                f"profile_{kind.replace(' ', '_')}_percent",
                f"profile: {kind}, %",
                tuple(each.shares.get(kind, 0.0) if each.device else None for each in found),
            )
            for kind in kinds
        ),
    ]
