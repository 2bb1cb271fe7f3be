"""What every command runs in: one life of a run, passes and waves; the home of Ray."""
