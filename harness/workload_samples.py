"""`python -m harness.workload_samples`, an older name of harness.workloads.custom."""

import sys

from harness.workloads.custom import main

if __name__ == "__main__":
    sys.exit(main())
