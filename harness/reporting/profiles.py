"""A profile in a picture, and profiles side by side: what the engine's time went to."""

from collections.abc import Callable, Sequence
from typing import Any

from harness.profiling.traces import Profile
from harness.reporting.style import BLUE, pyplot

PARTS = {"GPU": "kernel time", "CPU": "the operators' self time"}


def kinds(profile: Profile) -> Any:
    figure, axes = pyplot().subplots(figsize=(8, 0.4 * len(profile.kinds) + 1.2))
    shares = {kind.name: kind.percent for kind in profile.kinds}
    bars = axes.barh([*shares], [*shares.values()], color=BLUE, height=0.6)
    axes.bar_label(bars, fmt="%.1f %%", padding=4, fontsize=9)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, 1.1 * profile.kinds[0].percent)
    idle = f"; the GPU idle for {profile.idle_percent:.0f} % of the window" if profile.idle_percent is not None else ""
    axes.set_xlabel(f"% of {PARTS[profile.device or 'CPU']}")
    axes.set_title(f"What the engine's time went to{idle}")
    return figure


Figure = str | float | None
PROFILE_COLUMNS: tuple[tuple[str, str, Callable[[Profile], Figure]], ...] = (
    ("profile_failure", "profile: failed", lambda profile: profile.failure or None),
    ("profile_s", "profile: window, s", lambda profile: profile.seconds),
    ("profile_active_s", "profile: a kernel ran, s", lambda profile: profile.active_s),
    ("profile_idle_percent", "profile: idle, %", lambda profile: profile.idle_percent),
    ("profile_kernel_ms", "profile: mean kernel, ms", lambda profile: profile.mean_kernel_ms),
    ("profile_gaps", "profile: gaps", lambda profile: profile.gaps),
    ("profile_gap_ms", "profile: mean gap, ms", lambda profile: profile.mean_gap_ms),
)


def side_by_side(profiles: Sequence[Profile | None]) -> list[tuple[str, str, tuple[Figure, ...]]]:
    """Name, label and each run's value, the kinds by what they take in the first profile; None where there is none."""
    found = [profile for profile in profiles if profile]
    kinds = dict.fromkeys(share.name for profile in found for share in profile.kinds)
    return [
        *(
            (name, label, tuple(tell(each) if each else None for each in profiles))
            for name, label, tell in PROFILE_COLUMNS
        ),
        *(
            (
                f"profile_{kind.replace(' ', '_')}_percent",
                f"profile: {kind}, %",
                tuple(kind_percent(each, kind) for each in profiles),
            )
            for kind in kinds
        ),
    ]


def kind_percent(profile: Profile | None, kind: str) -> float | None:
    """The percent of the time that a kind takes; 0 where a profile has none of it."""
    if profile is None or profile.failure:
        return None
    return next((share.percent for share in profile.kinds if share.name == kind), 0.0)
