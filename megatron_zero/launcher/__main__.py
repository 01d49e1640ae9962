"""`python -m megatron_zero.launcher`: the same as `mz launch`."""

import sys

from .main import main

sys.exit(main(sys.argv[1:]))
