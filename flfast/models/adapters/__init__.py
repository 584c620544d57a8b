"""Adapters: few trained leaves in a model whose other weights, the base, are frozen."""
