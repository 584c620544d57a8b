"""The plan: what Hydra chose for one round. Torch-free."""

from typing import Literal, NamedTuple

LastBatch = Literal["keep", "drop", "pad"]
Shard = Literal["clients", "batch"]


class Batching(NamedTuple):
    """How a client's examples become local steps.

    Attributes:
        batch_size: examples per batch; -1 is B = infinity, all of a client's examples.
        accumulate: batches per local step.
        micro_batch: most examples in memory at once; None means a whole batch.
        last_batch: what becomes of the partial last step of a local epoch: `keep` trains on it,
            `drop` leaves it out unless nothing would be left, `pad` repeats examples from the
            epoch's beginning.
        drop_single: leave out an example rather than have a batch of one in the last step, on
            which BatchNorm has no variance.
        limit: batches of a local epoch, as `trainer.limit_train_batches`: a share or a number.
    """

    batch_size: int
    accumulate: int = 1
    micro_batch: int | None = None
    last_batch: LastBatch = "keep"
    drop_single: bool = False
    limit: float | int = 1.0


class RoundPlan(NamedTuple):
    """Everything about a round that may differ from the round before.

    Attributes:
        round_idx: from 1.
        phase: number of the phase that the plan was composed in.
        lr: local learning rate.
        batching: how examples become local steps.
        local_epochs: passes over a client's examples; None where local_steps is set.
        local_steps: optimizer steps per client; None where local_epochs is set.
        strategy: on which devices, in Lightning's word: `single`, `dp`, `ddp` or `fsdp`.
        shard: what `ddp` divides over the ranks: whole `clients`, or every `batch`.
        devices: what `trainer.devices` says.
        precision: what `trainer.precision` says.
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

    def describe(self) -> str:
        """The plan in a line."""
        strategy = f"{self.strategy}/{self.shard}" if self.strategy == "ddp" else self.strategy
        batch = "all" if self.batching.batch_size == -1 else str(self.batching.batch_size)
        return f"{strategy} on {self.devices}, {self.precision}, batch {batch}, lr {self.lr:g}"
