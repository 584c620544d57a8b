"""Data sources: functions that return `Examples`."""
