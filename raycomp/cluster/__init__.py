"""Ray: the one home of where things run."""
