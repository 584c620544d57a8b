"""Synthetic texts, to measure models of any size without a data set."""

import numpy as np
import torch

from flfast.datamodules.examples import Examples
from flfast.state.options import Count, NonNegativeInt
from flfast.state.randomness import generator


def tokens(
    *,
    num_examples: Count,
    num_test: NonNegativeInt,
    num_clients: Count,
    length: Count,
    vocabulary: Count,
    seed: int,
) -> Examples:
    """Random tokens [num_examples + num_test, length]; the last num_test texts are for testing.

    Args:
        num_examples: texts to train on, all clients together.
        num_test: test texts, all clients together.
        num_clients: natural owners of the texts.
        length: tokens of a text.
        vocabulary: C, number of different tokens.
        seed: the run's seed, on which alone the numbers depend.
    """
    rng, num = generator(seed, "synthetic texts"), num_examples + num_test
    texts = torch.from_numpy(rng.integers(1, vocabulary, size=(num, length + 1)))
    position = np.concatenate([np.arange(num_examples), np.arange(num_test)])
    return Examples(
        inputs=texts[:, :-1].contiguous(),
        targets=texts[:, 1:].contiguous(),
        num_classes=vocabulary,
        input_shape=(length,),
        is_test=np.arange(num) >= num_examples if num_test else None,
        owner=position % num_clients,
        task="language",
        vocabulary=tuple(f"{token} " for token in range(vocabulary)),
    )
