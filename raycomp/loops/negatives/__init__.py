"""Hard negatives: captions in, candidates judged, the hardest chosen."""
