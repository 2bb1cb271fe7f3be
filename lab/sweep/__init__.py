"""Sweeps in drawn worlds, and the published curves."""
