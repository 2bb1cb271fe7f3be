"""The science in order in one process: no Ray here."""
