"""``python -m lab COMMAND``: commands as those of raycomp."""

import sys

from lab import LAB
from raycomp.cli import main

if __name__ == "__main__":  # not in a process that this one starts
    sys.exit(main(program=LAB))
