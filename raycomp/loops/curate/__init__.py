"""Curation, stage by stage."""
