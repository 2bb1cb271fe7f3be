"""``python -m raycomp`` is ``raycomp``."""

import sys

from raycomp.cli import main

if __name__ == "__main__":  # not in a process that this one starts
    sys.exit(main())
