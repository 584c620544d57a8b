"""Selections: wrappers of an algorithm that choose which clients of a cohort train."""
