"""Partitions: functions that assign every example to a client."""
