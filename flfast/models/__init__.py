"""Model builders: each takes the input shape and the number of classes from the data."""
