"""`python -m harness.workload_samples`, an older name of `python -m harness workloads`."""

from harness.commands.workloads import main

if __name__ == "__main__":
    main()
