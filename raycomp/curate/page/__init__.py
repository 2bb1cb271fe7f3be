"""The page of a curation or a selection."""
