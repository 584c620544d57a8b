"""Schedules: functions that return the plan of a round."""
