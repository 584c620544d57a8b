"""Rows of the conformance program: a YAML file each, in `rows/`. Torch-free.

A row names runs, what is read of them, and what a paper says about it. This file is its schema.
"""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

from omegaconf._utils import get_yaml_loader
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from flfast.commands.sweeps.workers import visible_gpus
from flfast.config.errors import ConfigError
from flfast.state.messages import did_you_mean
from flfast.state.options import Count, NonNegative, Positive, Seed
from flfast.state.plain_yaml import read_yaml
from flfast.zoo.commands.conformance.run_measures import MeasureName

ROWS = Path(__file__).with_name("rows")
Level = Literal["fast", "day", "gpu", "gpu_day"]
LEVELS: tuple[Level, ...] = get_args(Level)

_INF = float("inf")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(_Strict):
    """The paper or page that a row's claims are from."""

    paper: str = Field(min_length=1)
    url: str = Field(pattern="^https://")


class Reading(_Strict):
    """What is read of a run: a measure of a column of `metrics.csv`.

    Attributes:
        column: column of `metrics.csv`; that of a variant comes first.
        measure: see `MeasureName`.
        window: evaluations at the end that `mean` and `deviation` read.
        target: value that `rounds` counts to.
    """

    column: str
    measure: MeasureName = "last"
    window: Count = 20
    target: float = 0.0


class Variant(_Strict):
    """Runs that differ in the seed only.

    Attributes:
        settings: overrides beside those of the row.
        column: replaces the column of what is read.
    """

    settings: list[str] = []
    column: str | None = None


class Claim(_Strict):
    """What should be true of a variant's value, compared with one reference and by one limit.

    Attributes:
        of: the variant.
        published: the reference is a published, or derived, number.
        than: the reference is the value of another variant.
        tolerance: the value differs from the reference by at most so much.
        above: the value is at least the reference plus so much.
        below: the value is at most the reference minus so much.
        factor: the value divided by the reference lies between these two.
        each: whether it should be true for each seed; otherwise for the mean over seeds.
        read: replaces the row's `read`.
    """

    of: str
    published: float | None = None
    than: str | None = None
    tolerance: NonNegative | None = None
    above: NonNegative | None = None
    below: NonNegative | None = None
    factor: tuple[NonNegative, Positive] | None = None
    each: bool = False
    read: Reading | None = None

    @model_validator(mode="after")
    def _one_of_each(self) -> "Claim":
        limits = (self.tolerance, self.above, self.below, self.factor)
        if (self.published is None) == (self.than is None):
            raise ValueError("allowed: either published or than")
        if sum(limit is not None for limit in limits) != 1:
            raise ValueError("allowed: one of tolerance, above, below, factor")
        return self

    def bounds(self, reference: float) -> tuple[float, float]:
        """The lowest and the highest value that is allowed beside the reference."""
        if self.tolerance is not None:
            return reference - self.tolerance, reference + self.tolerance
        if self.above is not None:
            return reference + self.above, _INF
        if self.below is not None:
            return -_INF, reference - self.below
        assert self.factor is not None
        low, high = self.factor
        return low * reference if low else 0.0, high * reference


class RowExamples(_Strict):
    """Examples of a row, one number in and one out: each is [client, input, target].

    Attributes:
        train: training examples; at least one of each client.
        test: test examples.
    """

    train: list[tuple[int, float, float]] = Field(min_length=1)
    test: list[tuple[int, float, float]] = Field(min_length=1)


class ConformanceRow(_Strict):
    """A row.

    Attributes:
        name: name of its file.
        title: what it shows, in a sentence.
        source: where its claims are from.
        level: `fast`, `day`, `gpu` or `gpu_day`.
        minutes: expected minutes of all its runs, one after the other, on one core or one GPU.
        holds: whether it is known to hold; the program fails if it does not.
        needs: files that must exist in the folder FLFAST_DATA, as glob patterns.
        packages: that must be installed beside those that flfast always needs.
        gpu: whether it takes days without a GPU, and is not run there.
        examples: data of its own, which `data=npz` reads.
        settings: overrides of all runs.
        seeds: of each variant.
        variants: by name.
        read: what is read of the runs.
        claims: what should be true.
        differences: known differences from the source.
    """

    name: str
    title: str
    source: Source
    level: Level
    minutes: Positive
    holds: bool
    needs: list[str] = []
    packages: list[str] = []
    gpu: bool = False
    examples: RowExamples | None = None
    settings: list[str] = []
    seeds: list[Seed] = Field([0], min_length=1)
    variants: dict[str, Variant] = Field(min_length=1)
    read: Reading
    claims: list[Claim] = Field(min_length=1)
    differences: list[str] = []

    @model_validator(mode="after")
    def _variants_exist(self) -> "ConformanceRow":
        for claim in self.claims:
            for name in filter(None, (claim.of, claim.than)):
                if name not in self.variants:
                    raise ValueError(f"variant {name}{did_you_mean(name, self.variants)}")
        return self

    def missing(self) -> list[str]:
        """What the row needs and is not there, as parts of a sentence."""
        root = Path(os.environ.get("FLFAST_DATA", "data"))
        files = [pattern for pattern in self.needs if next(root.glob(pattern), None) is None]
        packages = [f"the package {name}" for name in self.packages if find_spec(name) is None]
        named = [f"{', '.join(files)} in the folder FLFAST_DATA"] * bool(files)
        return named + packages + ["a GPU"] * (self.gpu and not visible_gpus())


def read_row(path: Path) -> ConformanceRow:
    """The row of a file.

    Raises:
        ConfigError: with the path, if the file is no row.
    """
    try:
        return ConformanceRow(name=path.stem, **read_yaml(path, dict, get_yaml_loader()))
    except ValidationError as error:
        first: Any = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: {where}: {first['msg']}") from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def read_rows(level: str, names: Sequence[str] = ()) -> list[ConformanceRow]:
    """The rows of a level by name, or those of them that are named.

    Raises:
        ConfigError: if the level or a name is unknown; names what is allowed.
    """
    if level not in LEVELS:
        raise ConfigError(f"{level}: unknown level; allowed: {', '.join(LEVELS)}")
    rows = {path.stem: read_row(path) for path in sorted(ROWS.glob("*.yaml"))}
    known = [name for name, row in rows.items() if row.level == level]
    for name in names:
        if name in rows and name not in known:
            of = f"a row of {rows[name].level}; of {level}"
            raise ConfigError(f"{name}: {of}: {', '.join(known)}")
        if name not in rows:
            raise ConfigError(f"{name}: unknown row of {level}{did_you_mean(name, known)}")
    return [rows[name] for name in known if name in names or not names]
