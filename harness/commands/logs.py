"""Print a LoadGen log as JSON, or with `--check` tell whether a run's claims follow from it.

Programs can read a log with `harness.loadgen.log`.
"""

from pathlib import Path

from harness.core.command import argument, make_command, option
from harness.core.errors import DONE, NOT_ACCEPTED
from harness.core.message_text import say
from harness.loadgen.log import result_json
from harness.results import claims


def logs(
    folder: Path = argument(..., "A folder with mlperf_log_detail.txt, or with --check a run.", "LOG_DIR"),
    check: bool = option(False, "Recompute what the run claims: equal, differs or cannot be recomputed, a line each."),
) -> int:
    """Print a LoadGen log as JSON."""
    if not check:
        say(result_json(folder))
        return DONE
    # With --check, the folder is a run's, and its claims are recomputed from its logs.
    lines, is_consistent = claims.report_claims(folder)
    say("\n".join(lines))
    return DONE if is_consistent else NOT_ACCEPTED


command = make_command(logs, not_accepted="--check found a difference")
