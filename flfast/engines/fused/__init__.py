"""Local training as one straight-line program: traced once, rewritten, run without autograd."""
