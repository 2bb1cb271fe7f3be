"""Sources of tasks and their conversion to arrays: sources, samples, splits, storage."""
