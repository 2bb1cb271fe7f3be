"""English: phrases, concepts, edits and their judges; no model, file or clock."""
