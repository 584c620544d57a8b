"""Sweeps: finished jobs are not run again, a line for each job, jobs side by side."""
