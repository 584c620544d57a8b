"""The fused engine: local steps are traced once, rewritten, compiled, and run without autograd."""
