"""Learners: heads on frozen embeddings, and methods that train the model itself."""
