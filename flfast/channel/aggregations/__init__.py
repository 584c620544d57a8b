"""Aggregation rules: how the server combines the uploads of a cohort."""
