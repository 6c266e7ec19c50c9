"""`python -m harness.submission {system,build,check}`, an older name of `python -m harness submission`."""

from harness.commands.submission import main

if __name__ == "__main__":
    main()
