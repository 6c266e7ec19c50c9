"""`python -m harness.quantize`, an older name of harness.quantization.quantize."""

import sys

from harness.quantization.quantize import main

if __name__ == "__main__":
    sys.exit(main())
