"""Trees, stores, the plan, types of settings, seeds, kernels, files: what all else builds on."""
