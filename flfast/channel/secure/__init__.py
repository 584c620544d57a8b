"""Secure aggregation: the server learns the sum of a cohort's uploads, and no single upload."""
