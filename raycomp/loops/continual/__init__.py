"""Tasks one after another: what they are, who learns them, what is left of each."""
