"""What the commands beside training do: saved runs, sweeps, the self-check."""
