"""Runs on several nodes: network namespaces of this machine, with faults or a slow network."""
