"""``raycomp demo``: a little world with planted faults, curated."""
