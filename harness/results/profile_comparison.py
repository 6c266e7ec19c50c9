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
    known_profiles = [profile or Profile() for profile in profiles]
    kinds = dict.fromkeys(kind for profile in known_profiles for kind in profile.shares)
    return [
        (
            "profile_failure",
            "profile: failed",
            tuple(known_profile.failure or None for known_profile in known_profiles),
        ),
        *(
            (name, label, tuple(getattr(known_profile, field) for known_profile in known_profiles))
            for name, label, field in PROFILE_COLUMNS
        ),
        *(
            (
                f"profile_{kind.replace(' ', '_')}_percent",
                f"profile: {kind}, %",
                tuple(
                    known_profile.shares.get(kind, 0.0) if known_profile.device else None
                    for known_profile in known_profiles
                ),
            )
            for kind in kinds
        ),
    ]
