"""`python -m harness.tracking RUN_DIR`, an older name of `python -m harness mlflow`."""

from harness.commands.mlflow import main

if __name__ == "__main__":
    main()
