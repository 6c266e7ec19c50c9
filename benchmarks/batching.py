"""Continuous batching against fixed batches of 16, on the demo model: the same samples, Offline, LoadGen's rates.

    python -m benchmarks.batching

The fixed batches wait for their slowest answer, one batch after the other, as the reference implementation does.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def rate(results: Path, *flags: str) -> float:
    """Tokens per second of a performance run of the demo."""
    command = [sys.executable, "run.py", "--model", "demo", "--mode", "performance", "--results-dir", str(results)]
    subprocess.run([*command, *flags], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    summary = json.loads((results / "latest" / "summary.json").read_text())
    return float(summary["run"]["performance"]["tokens_per_sec"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        continuous = rate(Path(folder))
        batches = rate(Path(folder), "--batch-size", "16")
    print(f"continuous batching {continuous:8,.0f} tokens/s")
    print(f"batches of 16       {batches:8,.0f} tokens/s")
    print(f"ratio               {continuous / batches:8.2f}")


if __name__ == "__main__":
    main()
