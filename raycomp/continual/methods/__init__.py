"""Who learns task after task: heads on frozen embeddings, and methods that train the model itself."""
