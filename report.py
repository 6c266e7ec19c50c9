"""The command: renders a run again from its logs, or a sweep; or puts runs side by side. `--help` lists the flags.

`python report.py RUN_DIR` (or a sweep's folder) needs nothing but the folder: config.json, LoadGen's logs, rouge.json.
"""

import harness.common.environment  # noqa: F401

# isort: split
import argparse
import signal
import sys
from pathlib import Path

from harness.common.errors import (
    BAD_INPUT,
    DONE,
    INTERRUPTED,
    Arguments,
    BenchmarkError,
    UsageError,
    line_of,
    plain,
    why,
)
from harness.config.cli import prepare
from harness.loadgen import log as loadgen_log
from harness.reporting import compare, compare_plot
from harness.reporting import report as rendering
from harness.sweep import report as sweep_report


def parser() -> argparse.ArgumentParser:
    flags = Arguments(description=__doc__.partition("\n")[0] if __doc__ else "")
    flags.add_argument("run", type=Path, nargs="?", metavar="RUN_DIR", help="a run's or a sweep's folder")
    flags.add_argument(
        "--compare",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="runs side by side: settings that differ, speed, latency, accuracy; two with accuracy: their answers too",
    )
    flags.add_argument("--html", action="store_true", help="name the report.html that was written, not the report.md")
    flags.add_argument("--last", type=int, metavar="N", help="as --compare, of the last N finished runs")
    flags.add_argument("--results-dir", type=Path, default=Path("results"), help="where --last looks")
    flags.add_argument("--plot", type=Path, metavar="FILE.png", help="also draw the comparison")
    flags.add_argument("--csv", type=Path, metavar="FILE", help="also write the comparison's table to a CSV file")
    return flags


def main() -> int:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as in `... | head`
    flags = parser()
    asked = flags.parse_args()
    if sum(choice is not None for choice in (asked.run, asked.compare, asked.last)) != 1:
        flags.error("name one RUN_DIR, or --compare RUN RUN ..., or --last N")
    if (asked.csv or asked.plot) and asked.run:
        flags.error("--csv and --plot go with --compare or --last")
    if asked.plot and asked.plot.suffix != ".png":
        flags.error(f"--plot {asked.plot}: a name that ends with .png")
    try:
        print(rendered(asked.run, asked.html) if asked.run else compared(asked))
    except (BenchmarkError, loadgen_log.LogError) as error:
        print(f"error: {plain(line_of(str(error)))}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        print(f"error: {error.filename}: {why(error)}.", file=sys.stderr)
        return BAD_INPUT
    return DONE


def rendered(folder: Path, as_page: bool) -> Path:
    """Renders a run or a sweep; returns the path of the report, or of the same `as_page` to send around."""
    sweep = (folder / "sweep.json").exists()
    if sweep and as_page:
        raise UsageError(f"--html {folder}: a sweep has no report.html; its report.md is the page.")
    (sweep_report.build if sweep else rendering.build)(folder)
    return folder / ("report.html" if as_page else "report.md")


def compared(asked: argparse.Namespace) -> str:
    """The comparison's page; writes its table where a CSV file is asked for."""
    folders = asked.compare if asked.last is None else compare.last(asked.results_dir, asked.last)
    runs, left_out = compare.load(folders)
    for reason in left_out:
        print(f"left out: {reason}", file=sys.stderr)
    if asked.csv:
        compare.write_csv(asked.csv, runs)
    if asked.plot:
        compare_plot.write(asked.plot, runs)
    return compare.page(runs)


if __name__ == "__main__":
    prepare()
    sys.exit(main())
