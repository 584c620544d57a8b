"""Loggers beside those of Lightning."""
