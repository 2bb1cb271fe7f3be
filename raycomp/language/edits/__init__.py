"""SWAP, REPLACE and ADD by rules."""
