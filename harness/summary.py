"""`python -m harness.summary` writes the JSON schema of summary.json (harness.results.summary)."""

from harness.common.errors import DONE
from harness.results.summary import SCHEMA_FILE, schema
from harness.terminal.command import make_command, start


def write_schema() -> int:
    """Write the JSON schema of summary.json to templates/summary.schema.json."""
    SCHEMA_FILE.write_text(schema())
    return DONE


if __name__ == "__main__":
    start(make_command(write_schema))
