"""Readers of published continual-learning data sets: files -> rows, one short module per layout."""
