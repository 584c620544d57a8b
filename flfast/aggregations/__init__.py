"""Aggregations: how the uploads of a cohort become one."""
