"""``raycomp curate`` and ``select`` on Ray."""
