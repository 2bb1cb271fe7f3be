"""The science as free functions of arrays: no files, network, clock or global random state."""
