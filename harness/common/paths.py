"""Where what comes with the code is: templates, the demo, workloads, sweeps, run.py."""

from pathlib import Path

from harness.common.errors import UsageError

PACKAGE = Path(__file__).resolve().parents[1]
CHECKOUT = PACKAGE.parent
# An installed package holds them as data; `pip install` puts them there.
ROOT = CHECKOUT if (CHECKOUT / "templates").is_dir() else PACKAGE / "data"
INFERENCE = ROOT / "third_party" / "inference"  # MLPerf's own repository, the submodule


def in_submodule(path: Path) -> Path:
    """A path in it. Raises UsageError where the submodule is empty."""
    if not path.exists():
        shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        raise UsageError(f"{shown} is missing: `git submodule update --init third_party/inference`.")
    return path
