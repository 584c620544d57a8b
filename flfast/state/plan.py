"""The plan of a round: all settings that may change from round to round. Torch-free."""

from typing import Literal, NamedTuple

LastBatch = Literal["keep", "drop", "pad"]
Shard = Literal["clients", "batch"]
Fp32 = Literal["ieee", "tf32"]
"""How a GPU multiplies float32: as IEEE 754 says, or with factors of 10 bits."""


class Batching(NamedTuple):
    """How a client's examples are divided into local steps.

    Attributes:
        batch_size: examples per batch; -1 is B = infinity, all of a client's examples.
        accumulate: batches per local step.
        micro_batch: most examples in memory at once; None is a whole batch.
        last_batch: how a partial last step of a local epoch is treated. `keep` trains on it.
            `drop` skips it unless it is the only one. `pad` fills it with examples from the
            epoch's beginning.
        drop_single: skip an example if the last step would have a batch of one, for which
            BatchNorm has no variance.
        limit: most batches of a local epoch: a fraction below 1, or a number; None is all.
    """

    batch_size: int
    accumulate: int = 1
    micro_batch: int | None = None
    last_batch: LastBatch = "keep"
    drop_single: bool = False
    limit: float | int | None = None


def batch_limit(option: float | int) -> float | int | None:
    """`trainer.limit_train_batches` as `Batching.limit`: 1 is one batch, 1.0 is all of them."""
    return None if isinstance(option, float) and option == 1 else option


class RoundPlan(NamedTuple):
    """All settings of a round that may differ from the previous round's.

    Attributes:
        round_idx: the round, from 1.
        phase: index of the schedule's phase, from 0.
        lr: local learning rate.
        batching: how examples are divided into local steps.
        local_epochs: passes over a client's examples; None if `local_steps` is set.
        local_steps: optimizer steps per client; None if `local_epochs` is set.
        strategy: how training is distributed: `single`, `dp`, `ddp` or `fsdp`.
        shard: unit that `ddp` divides over the ranks: whole `clients`, or every `batch`.
        devices: the devices, such as `cpu:1` or `gpu:[0, 1]`.
        precision: the value of `trainer.precision`.
        work_fraction: fraction of the local epochs or steps that a client does, in (0, 1];
            rounded to whole steps.
        fp32_precision: the value of `trainer.fp32_precision`; None where it has no effect.
    """

    round_idx: int
    phase: int
    lr: float
    batching: Batching
    local_epochs: int | None
    local_steps: int | None
    strategy: str
    shard: Shard
    devices: str
    precision: str
    work_fraction: float = 1.0
    fp32_precision: Fp32 | None = None

    @property
    def arithmetic(self) -> str:
        """The precision, and how float32 is multiplied if the user said so: `32-true ieee`."""
        return " ".join(filter(None, (self.precision, self.fp32_precision)))

    def for_stage(self, epochs: int | None) -> "RoundPlan":
        """The plan of a stage; its own `epochs`, if any, are ignored if the plan has steps."""
        if epochs is None or self.local_epochs is None:
            return self
        return self._replace(local_epochs=epochs)

    def with_work_fraction(self, epoch_steps: int) -> "RoundPlan":
        """The plan with its share of the local steps, at least one; a pass has `epoch_steps`."""
        if self.work_fraction == 1:
            return self
        steps = self.local_steps or (self.local_epochs or 1) * epoch_steps
        share = max(1, round(self.work_fraction * steps))
        return self._replace(local_epochs=None, local_steps=share, work_fraction=1.0)

    def describe(self) -> str:
        """The plan in one line, for the log."""
        strategy = f"{self.strategy}/{self.shard}" if self.strategy == "ddp" else self.strategy
        batch = "all" if self.batching.batch_size == -1 else str(self.batching.batch_size)
        return f"{strategy} on {self.devices}, {self.arithmetic}, batch {batch}, lr {self.lr:g}"
