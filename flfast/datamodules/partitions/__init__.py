"""Partitions: functions that name the owner of every example."""
