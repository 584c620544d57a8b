"""Samplers: functions that draw the cohort of a round."""
