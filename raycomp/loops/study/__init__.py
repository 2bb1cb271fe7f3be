"""The study on the little world: which subset and which negatives teach composition, where all is known."""
