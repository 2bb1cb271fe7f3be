"""``python -m lab COMMAND``: commands as those of raycomp."""

from lab import LAB
from raycomp.cli import run

if __name__ == "__main__":  # not in a process that this one starts
    run(LAB)
