"""The life of a run, its passes and waves, and all code that uses Ray."""
