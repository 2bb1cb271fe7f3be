"""Tables in, one self-contained HTML page out: the shared parts of pages."""
