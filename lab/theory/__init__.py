"""The toy causal model of the theorems on hard negatives, and which premises hold in it."""
