"""The logger of `metrics.csv`, beside Lightning's loggers."""
