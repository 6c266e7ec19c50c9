"""`python -m harness.summary` writes the JSON schema of summary.json (harness.results.summary)."""

import sys

from harness.results.summary import main

if __name__ == "__main__":
    sys.exit(main())
