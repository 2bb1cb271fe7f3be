"""Commands that look at runs and data: show, list, explain, audit, explore, diff, card."""
