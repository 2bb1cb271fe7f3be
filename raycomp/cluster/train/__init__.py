"""Training on Ray: pairs found and laid out, batches made beside the trainers, one model out."""
