"""From a checked config to a run."""
