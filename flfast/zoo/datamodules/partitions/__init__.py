"""More partitions."""
