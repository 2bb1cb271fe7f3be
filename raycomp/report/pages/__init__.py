"""One page for each kind of run."""
