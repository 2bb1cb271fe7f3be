"""``raycomp sweep``: Ray Tune around the commands that a trial runs."""
