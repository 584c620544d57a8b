"""Datasets: functions that return `Examples`."""
