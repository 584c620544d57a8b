"""Schedules: the plan of every round."""
