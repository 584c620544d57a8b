"""Strategies that Lightning lacks."""
