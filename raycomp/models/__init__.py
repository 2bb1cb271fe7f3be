"""The foreign models: open_clip, the spaCy parser, checkpoints."""
