"""The commands beside training: saved runs, sweeps, the self-check."""
