"""FedProx's synthetic(alpha, beta): every client has a linear model and inputs of its own.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks.
MLSys 2020, section 5.1. https://arxiv.org/abs/1812.06127
"""

from dataclasses import dataclass

import numpy as np
import torch

from flfast.datamodules.bounds import require_memory
from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.source import DataSource
from flfast.state.options import BelowOne, Count, NonNegative
from flfast.state.randomness import generator

_SMALLEST = 50  # examples of a client, before the log-normal ones
_LOG_MEAN, _LOG_STD = 4.0, 2.0
_DECAY = 1.2  # the j-th feature has the variance j ** -1.2


@dataclass(frozen=True, kw_only=True)
class SyntheticAlphaBeta(DataSource):
    """Inputs float32 [N, num_features], classes argmax(W_k x + b_k), clients in order.

        u_k ~ N(0, alpha^2)    W_k, b_k ~ N(u_k, 1)
        B_k ~ N(0, beta^2)     v_k ~ N(B_k, 1)       x ~ N(v_k, diag(j^-1.2))

    As in the authors' code, alpha and beta are standard deviations. Client k has 50 examples more
    than the whole part of a log-normal number, whose logarithm has mean 4 and standard deviation
    2. The last examples of each client are its test set.

    u_k adds the same number to the outputs of all classes, so alpha has no effect on the classes,
    in the authors' code as here. Clients differ by their own draws of W_k, b_k and v_k.
    """

    alpha: NonNegative
    beta: NonNegative
    iid: bool
    num_clients: Count
    num_features: Count
    num_classes: Count
    test_fraction: BelowOne
    seed: int

    def load(self) -> Examples:
        """All examples.

        Raises:
            ValueError: if the data do not fit into memory.
        """
        rng, num = generator(self.seed, "synthetic alpha beta"), self.num_clients
        asked = f"data.num_clients={num} data.num_features={self.num_features}"
        require_memory(8 * num, asked)
        sizes = _SMALLEST + rng.lognormal(_LOG_MEAN, _LOG_STD, num).astype(np.int64)
        weights_bytes = 8 * self.num_features * self.num_classes
        # The parts of all clients in float32, and once more when they are joined.
        what = f"{asked} data.num_classes={self.num_classes}: {sizes.sum():,} examples"
        require_memory(weights_bytes + 8 * int(sizes.sum()) * self.num_features, what)
        inputs, classes = self._draw(sizes, rng)
        owner = np.repeat(np.arange(num), sizes)
        place = np.concatenate([np.arange(size) for size in sizes])
        num_test = np.floor(self.test_fraction * sizes + 0.5).astype(np.int64)
        return Examples(
            inputs=torch.from_numpy(inputs),
            targets=torch.from_numpy(classes),
            num_classes=self.num_classes,
            is_test=place >= (sizes - np.minimum(num_test, sizes - 1))[owner],
            owner=owner,
        )

    def _draw(self, sizes: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Inputs float32 [N, num_features], and classes int64 [N]."""
        shape = (self.num_features, self.num_classes)
        shared = rng.standard_normal(shape), rng.standard_normal(self.num_classes)
        spread = np.arange(1, self.num_features + 1) ** (-_DECAY / 2)
        inputs, classes = [], []
        for size in sizes:
            if self.iid:
                (weights, biases), centre = shared, np.zeros(self.num_features)
            else:
                mean = self.alpha * rng.standard_normal()
                weights = mean + rng.standard_normal(shape)
                biases = mean + rng.standard_normal(self.num_classes)
                centre = self.beta * rng.standard_normal() + rng.standard_normal(self.num_features)
            drawn = centre + spread * rng.standard_normal((size, self.num_features))
            inputs.append(drawn.astype(np.float32))
            classes.append((drawn @ weights + biases).argmax(axis=1))
        return np.concatenate(inputs), np.concatenate(classes)
