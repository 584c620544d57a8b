"""Size and time of messages: `python -m benchmarks.codecs`.

Each message holds a random change of PFLlib's CNN. One thread encodes and decodes it.
"""

import argparse
import sys
import time
from functools import partial

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from benchmarks.checkouts import ROOT
from flfast.channel.compression.compression import Compression, transmit
from flfast.models.cnn import cnn
from flfast.state.tree import Tree, tree_map
from flfast.state.weights import read_weights

MESSAGES = (
    "float16",
    "quantize",
    "quantize bits=4",
    "quantize bits=1",
    "sign",
    "topk",
    "randk",
    "powersgd",
    "lowrank",
)


def compression(message: str) -> Compression:
    """The compression of an option's name, and of its settings after that."""
    name, *settings = message.split()
    config = OmegaConf.load(ROOT / "conf" / "compression" / f"{name}.yaml")
    found = instantiate(OmegaConf.merge(config, OmegaConf.from_dotlist(settings)))
    assert isinstance(found, Compression)
    return found


def change() -> Tree:
    """A change of the CNN on MNIST, normal numbers."""
    model = cnn(input_shape=(1, 28, 28), num_classes=10, channels=[32, 64], hidden=512, padding=0)
    random = torch.Generator().manual_seed(0)
    return tree_map(
        lambda leaf: 0.01 * torch.randn(leaf.shape, generator=random), read_weights(model)
    )


def measure(message: str, tries: int) -> tuple[int, float]:
    """(bytes of a message, least milliseconds of processor time to encode and decode it)."""
    send = partial(transmit, compression(message), change())
    num_bytes, times = 0, []
    for seed in range(tries + 1):  # the first one may compile
        rng = np.random.Generator(np.random.Philox(seed))
        start = time.process_time()
        sent, _ = send(rng)
        times.append(time.process_time() - start)
        num_bytes = len(sent)
    return num_bytes, 1e3 * min(times[1:])


def main() -> None:
    """Measure, and print a line for each message."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("messages", nargs="*", default=MESSAGES)
    parser.add_argument("--tries", type=int, default=50)
    given = parser.parse_args()
    torch.set_num_threads(1)
    sys.stdout.write("| `compression` | bytes of a message | time, ms |\n|---|---|---|\n")
    for message in given.messages:
        num_bytes, ms = measure(message, given.tries)
        sys.stdout.write(f"| `{message}` | {num_bytes:,} | {ms:.2f} |\n")


if __name__ == "__main__":
    main()
