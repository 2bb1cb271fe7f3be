"""``python -m raycomp`` is ``raycomp``."""

import sys

from raycomp.cli import main

sys.exit(main())
