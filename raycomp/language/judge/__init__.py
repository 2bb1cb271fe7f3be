"""When an edited caption is a hard negative."""
