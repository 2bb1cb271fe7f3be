"""Third-party models: open_clip, the spaCy parser, checkpoints."""
