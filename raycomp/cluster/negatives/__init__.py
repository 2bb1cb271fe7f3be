"""``raycomp negatives`` on Ray, and the language models it asks."""
