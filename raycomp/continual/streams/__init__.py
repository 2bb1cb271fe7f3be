"""Where tasks are from, and how they become arrays: sources, samples, splits, and where these lie."""
