"""Aggregation rules of the server; `conf/aggregation` explains their settings."""
