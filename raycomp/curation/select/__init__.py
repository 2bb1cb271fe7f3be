"""Which rows stay: measures and rules, gates, filters, near-duplicates, test samples, removed rows."""
