"""Training, on one rank or many, and the little world that it is tried on."""
