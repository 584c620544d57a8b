"""flfast's plugin of Hydra. Hydra finds launchers in the namespace `hydra_plugins` only."""
