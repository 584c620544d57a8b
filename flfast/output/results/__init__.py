"""Results: what runs and sweeps left on the disk, read and computed with. Torch-free."""
