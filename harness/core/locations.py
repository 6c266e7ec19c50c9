"""The places of the files that come with the code: templates, the demo, workloads, sweeps."""

from pathlib import Path

# The places of what comes with the code: templates, the demo, workloads, sweeps, run.py.
PACKAGE = Path(__file__).resolve().parents[1]
CHECKOUT = PACKAGE.parent
# An installed package holds them as data; `pip install` puts them there.
IS_CHECKOUT = (CHECKOUT / "templates").is_dir()
ROOT = CHECKOUT if IS_CHECKOUT else PACKAGE / "data"
INFERENCE = ROOT / "third_party" / "inference"  # MLPerf's own repository, the submodule
