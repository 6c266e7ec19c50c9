"""The places of the files that come with the code: templates, the demo, workloads, sweeps."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
CHECKOUT = PACKAGE.parent
# `pip install` puts these files into the installed package, below `data`.
IS_CHECKOUT = (CHECKOUT / "templates").is_dir()
ROOT = CHECKOUT if IS_CHECKOUT else PACKAGE / "data"
INFERENCE = ROOT / "third_party" / "inference"  # MLPerf's own repository, the submodule
