"""Model builders. Each gets the input shape and the number of classes from the data."""
