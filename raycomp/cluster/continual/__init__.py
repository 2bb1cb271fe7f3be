"""``raycomp continual``: streams made and embedded once, then methods on them."""
