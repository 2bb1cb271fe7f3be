"""Benchmark files as their users find them, read into one shape of row; no model, no image is opened."""
