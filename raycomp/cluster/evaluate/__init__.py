"""``raycomp evaluate``: every picture and text embedded once, laid over chunks and committed in waves."""
