"""`python -m harness.tracking RUN_DIR`: sends a finished folder to MLflow, again if need be."""

import sys

from harness.tracking.send import main

if __name__ == "__main__":
    sys.exit(main())
