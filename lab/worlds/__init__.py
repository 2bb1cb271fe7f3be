"""The little world: rendered scenes whose captions, negatives and faults are known exactly."""
