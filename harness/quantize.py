"""`python -m harness.quantize`, an older name of `python -m harness quantize`."""

from harness.commands.quantize import main

if __name__ == "__main__":
    main()
