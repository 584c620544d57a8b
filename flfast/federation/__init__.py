"""The outer loop: rounds, cohorts, plans."""
