"""Data sets that are learned one after another: files -> rows, one short file per layout."""
