"""What an author of an algorithm reads: the algorithm, its client, uploads and records."""
