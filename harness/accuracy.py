"""`python -m harness.accuracy`, an older name of `python -m harness accuracy`."""

from harness.commands.accuracy import main

if __name__ == "__main__":
    main()
