"""``raycomp evaluate``: what a model is asked, and what comes of its answers; the same without Ray."""
