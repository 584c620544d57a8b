"""No partition: one client has all examples. In a deployment, each client has data of its own."""

import numpy as np


def whole(num_examples: int) -> np.ndarray:
    """Owner of every example, int64 [N]: always 0."""
    return np.zeros(num_examples, dtype=np.int64)
