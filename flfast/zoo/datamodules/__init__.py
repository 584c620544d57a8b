"""More data, partitions and shifts."""
