"""`python -m harness.accuracy`, an older name of harness.evaluation.accuracy."""

import sys

from harness.evaluation.accuracy import main

if __name__ == "__main__":
    sys.exit(main())
