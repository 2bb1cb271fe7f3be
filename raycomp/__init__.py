"""raycomp."""
