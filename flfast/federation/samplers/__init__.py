"""Samplers: who trains in a round."""
