"""A sweep in one process: what is tried, what came of it, what is best."""
