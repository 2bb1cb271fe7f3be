"""What a probe measures, one file each, and the tables that they print."""
