"""Options that nothing else needs, in streets as those of `flfast`."""
