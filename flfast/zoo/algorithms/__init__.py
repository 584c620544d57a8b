"""More federated algorithms, one per file."""
