"""The local step as a graph: traced, rewritten, compiled and run."""
