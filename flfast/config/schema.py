"""Schema of the config: keys, types and ranges of the top level. Torch-free."""

from typing import Annotated, Any, Literal

from annotated_types import Le
from pydantic import BaseModel, ConfigDict, Field

from flfast.config.rules import OPTIMIZED, SELECTING
from flfast.output.results.columns import VIEWS
from flfast.state.options import (
    BelowOne,
    Count,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveUpToOne,
    Seed,
)
from flfast.state.plan import LastBatch
from flfast.tasks.names import TaskName

_OPTIMIZED = ("auto", *OPTIMIZED)
_SELECTING = ("auto", *SELECTING)
_OwnOptimized = Annotated[str, Field(pattern=rf"^({'|'.join(VIEWS)}|train)/[^,\n]+$")]
_OwnSelecting = Annotated[str, Field(pattern=r"^(val|personal_val|train)/[^,\n]+$")]

STRICT = ConfigDict(strict=True, allow_inf_nan=False)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", **STRICT)


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow", **STRICT)


class TargetSettings(_Open):
    """A function or class that Hydra calls; all other keys are its arguments."""

    target: str = Field(alias="_target_", min_length=1)


class SplitSettings(_Strict):
    """Held-out shares of every client's examples, and the server's own examples."""

    val: BelowOne
    test: BelowOne
    few_shot: Count | None
    server_examples: NonNegativeInt


class LoaderSettings(_Strict):
    """How batches reach the model."""

    eval_batch_size: Count
    num_workers: NonNegativeInt
    pin_memory: bool
    persistent_workers: bool


class TrainerSettings(_Open):
    """Trainer options whose ranges Lightning checks late or not at all."""

    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps", "tpu"]
    devices: int | Literal["auto"] | list[NonNegativeInt]
    precision: Literal["32-true", "16-mixed", "bf16-mixed", "bf16-true", "16-true", "64-true"]
    fp32_precision: Literal["ieee", "tf32"] | None = None
    accumulate_grad_batches: Count
    gradient_clip_val: NonNegative | None
    gradient_clip_algorithm: Literal["norm", "value"]
    limit_train_batches: float | int = Field(gt=0)
    limit_val_batches: float | int = Field(ge=0)
    limit_test_batches: float | int = Field(gt=0)
    fast_dev_run: bool | NonNegativeInt
    deterministic: bool | Literal["warn"] | None
    profiler: Literal["simple", "advanced", "pytorch"] | dict[str, Any] | None


class OptimizerSettings(TargetSettings):
    """A torch optimizer; the ranges apply to any that has the option."""

    lr: Positive | Literal["auto"]
    momentum: NonNegative = 0.0
    weight_decay: NonNegative = 0.0
    betas: list[BelowOne] = Field(default=[0.9, 0.999], min_length=2, max_length=2)


class StrategySettings(_Strict):
    """How training is distributed over devices."""

    name: Literal["auto", "single", "dp", "ddp", "fsdp"]
    shard: Literal["clients", "batch"] = "clients"
    group_params: Count | None = None
    timeout_s: Count = 1800
    max_restarts: NonNegativeInt = 0


class CheckpointSettings(_Strict):
    """When checkpoints are written, and which are kept."""

    every: NonNegativeInt | Literal["auto"]
    keep_last: Count
    keep_best: Literal[SELECTING] | _OwnSelecting | None  # type: ignore[valid-type]


class PhaseSettings(_Strict):
    """A phase: overrides that apply from a round on."""

    start: int = Field(alias="from")
    overrides: list[str]


class AdaptSettings(_Strict):
    """What changes when a metric stalls."""

    metric: Literal[_SELECTING] | _OwnSelecting  # type: ignore[valid-type]
    patience: Count
    action: Literal["double_batch", "halve_lr"]
    max_batch_size: Count
    min_lr: NonNegative


class ScheduleSettings(_Strict):
    """What changes from round to round."""

    phases: list[PhaseSettings]
    lr_scaling: Literal["none", "linear", "sqrt"]
    adapt: AdaptSettings | None


class SchedulerSettings(TargetSettings):
    """A scheduler of torch; the ranges apply to any that has the option."""

    T_max: Count = 1
    T_0: Count = 1
    step_size: Count = 1
    total_iters: NonNegativeInt = 0
    gamma: Positive = 1.0
    eta_min: NonNegative = 0.0


class LrScheduleSettings(_Strict):
    """The learning rate as a function of the round."""

    scheduler: SchedulerSettings | None
    warmup_rounds: NonNegativeInt


class SamplerSettings(TargetSettings):
    """The sampler; `holdout_clients` is flfast's, all other keys are the sampler's arguments."""

    holdout_clients: NonNegativeInt | BelowOne = 0


class Settings(_Strict):
    """The whole config."""

    rounds: Annotated[Count, Le(1_000_000)]
    seed: Seed
    mode: Literal["federated", "centralized", "local_only"]
    task: Literal["auto"] | TaskName
    batch_size: Count | Literal[-1, "auto"]
    micro_batch: Count | Literal["auto"] | None
    last_batch: LastBatch
    recompute: str | None
    local_epochs: Count | None
    local_steps: Count | None
    bn: Literal["aggregate", "local", "frozen", "recalibrate"]
    local_optimizer_state: Literal["reset", "keep", "average"]
    upload_clip_norm: Positive | None
    client_states: Literal["auto", "ram", "disk"]
    eval_every: Count
    eval_examples: PositiveUpToOne
    finetune_epochs: NonNegativeInt
    optimized_metric: Literal[_OPTIMIZED] | _OwnOptimized  # type: ignore[valid-type]
    checkpoint: CheckpointSettings
    resume: str | None
    overwrite: bool
    init_from: str | None
    threads: Count
    split: SplitSettings
    loader: LoaderSettings
    algorithm: TargetSettings
    data: TargetSettings
    partition: TargetSettings
    shift: TargetSettings
    model: TargetSettings
    adapter: TargetSettings
    optimizer: OptimizerSettings
    lr_schedule: LrScheduleSettings
    schedule: ScheduleSettings
    sampler: SamplerSettings
    selection: TargetSettings
    topology: TargetSettings
    pace: TargetSettings
    devices: TargetSettings
    work: TargetSettings
    stop: TargetSettings
    aggregation: TargetSettings
    attack: TargetSettings
    faults: TargetSettings
    privacy: TargetSettings
    compression: TargetSettings
    secure: TargetSettings
    audit: TargetSettings
    engine: TargetSettings
    strategy: StrategySettings
    trainer: TrainerSettings
    logger: dict[str, TargetSettings | None] | None
    callbacks: dict[str, TargetSettings | None] | None
