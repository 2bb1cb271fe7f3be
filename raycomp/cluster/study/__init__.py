"""``raycomp study``: worlds, scores and trainings of the study on the little world, side by side on Ray."""
