"""Where what comes with the code is: templates, the demo, workloads, sweeps, run.py."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
CHECKOUT = PACKAGE.parent
# An installed package holds them as data; `pip install` puts them there.
ROOT = CHECKOUT if (CHECKOUT / "templates").is_dir() else PACKAGE / "data"
