"""Backdoors: inputs with a trigger that the model shall put into the attackers' class."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from flfast.datamodules.batches import Batch
from flfast.datamodules.examples import ClientIndices, Examples, group_by_client
from flfast.datamodules.shifts.applying import shift_examples
from flfast.datamodules.shifts.shift import Affected, Shift
from flfast.state.image_shape import refuse_channels_last
from flfast.state.options import PositiveUpToOne
from flfast.state.randomness import generator


@dataclass(frozen=True)
class Backdoor:
    """A trigger in the inputs, and the class that attackers teach the model to answer with.

    Attributes:
        trigger: inputs [M, ...] as they are stored -> the same inputs with the trigger; of the
            same shape and type. A function of a module, or a `functools.partial` of one.
        target: class of inputs with the trigger.
        share: fraction of each attacker's examples that get the trigger, in (0, 1].
        source: only examples of this class get the trigger; None: of all classes but the target.
        check: raises a ValueError for examples that cannot have the trigger.
    """

    trigger: Callable[[Tensor], Tensor]
    target: int
    share: PositiveUpToOne
    source: int | None = None
    check: Callable[[Examples], None] = lambda examples: None

    def concerns(self, labels: Tensor) -> np.ndarray:
        """Whether each example gets the trigger, by its true class int64 [M]; bool [M]."""
        if self.source is None:
            return (labels != self.target).numpy()
        return (labels == self.source).numpy()

    def triggered(self, batch: Batch) -> Batch:
        """A batch with the trigger, and the target as its class."""
        targets = torch.full_like(batch.targets, self.target)
        return batch._replace(inputs=self.trigger(batch.inputs), targets=targets)


def poisoned(
    examples: Examples,
    backdoor: Backdoor,
    clients: Iterable[int],
    train: ClientIndices,
    *,
    seed: int,
) -> Examples:
    """The examples after attackers gave some of theirs the trigger and the target class.

    `train` has the training examples by client. The choice depends on the seed alone.

    Raises:
        ValueError: if these examples cannot have the trigger.
    """
    _check(examples, backdoor)
    chosen, owner = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for client_id in clients:
        own = train.indices_of(client_id)
        own = own[backdoor.concerns(examples.targets[own])]
        rng = generator(seed, "backdoor", client_id)
        chosen.append(rng.choice(own, round(backdoor.share * len(own)), replace=False))
        owner.append(np.full(len(chosen[-1]), client_id))
    num_clients = len(train.offsets) - 1
    own_split = group_by_client(np.concatenate(chosen), np.concatenate(owner), num_clients)
    if not len(own_split.indices):
        return examples
    shift = Shift(
        "poisoned",
        at="train",
        inputs=partial(_with_trigger, backdoor.trigger),  # which workers of a loader unpickle
        targets=lambda labels, _: torch.full_like(labels, backdoor.target),
    )
    return shift_examples(examples, shift, {"train": own_split}, seed=seed)[0]


def _with_trigger(trigger: Callable[[Tensor], Tensor], inputs: Tensor, _: Affected) -> Tensor:
    return trigger(inputs)


def _check(examples: Examples, backdoor: Backdoor) -> None:
    for key, value in (("target", backdoor.target), ("source", backdoor.source)):
        if value is not None and value >= examples.num_classes:
            raise ValueError(
                f"attack.{key}={value} with {examples.num_classes} classes; allowed: 0 to "
                f"{examples.num_classes - 1}"
            )
    if backdoor.source == backdoor.target:
        raise ValueError(
            f"attack.source={backdoor.source} attack.target={backdoor.target}: nothing would "
            f"change; allowed: another class"
        )
    if len(examples.input_shape) != 3:
        raise ValueError(
            f"a backdoor with inputs of shape {list(examples.input_shape)}; allowed: images of "
            f"shape [channels, height, width]"
        )
    refuse_channels_last(examples.input_shape)
    backdoor.check(examples)
