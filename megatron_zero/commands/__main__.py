"""`python -m megatron_zero.commands` is `mz`."""

import sys

from .main import main

sys.exit(main())
