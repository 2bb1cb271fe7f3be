"""What is computed of every pair: pixels and tokens, alignment, phrases, drops."""
