"""Trees of tensors: the only form in which models and states travel."""
