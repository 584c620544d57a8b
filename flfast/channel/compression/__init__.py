"""Compression: messages of fewer bytes than the change that they stand for."""
