"""The laboratory: drawn worlds with known answers, and what is measured in them. Not a tool for users."""
