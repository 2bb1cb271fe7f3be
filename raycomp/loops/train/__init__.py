"""Training in one process, and the little world that it is tried on."""
