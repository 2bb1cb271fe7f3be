"""``python -m raycomp`` is ``raycomp``."""

from raycomp.cli import run

if __name__ == "__main__":  # not in a process that this one starts
    run()
