"""The sources `table` and `hf` with short options, for files of rows."""

from pathlib import Path

from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.hf import Hf
from flfast.datamodules.sources.tabular import Table

_OPTIONS = {"targets": "y", "owner": "who", "test_fraction": 0.0, "task": None, "seed": 0}


def read_table(path: Path, missing: str = "error", **options: object) -> Examples:
    """Examples of `data=table`.

    Args:
        path: of the file.
        missing: as of `table`.
        options: in place of the default ones.
    """
    names = {"numeric": ["x"], "categorical": ["town"], "is_test": "part"}
    return Table(
        path=str(path),
        **_OPTIONS | names | options,
        standardise="none",
        standardise_targets=False,
        fill=None,
        missing_indicator=False,
        missing=missing,
    ).load()


def read_hf(path: Path, missing: str = "error", **options: object) -> Examples:
    """Examples of `data=hf`.

    Args:
        path: of the file.
        missing: as of `hf`.
        options: in place of the default ones.
    """
    return Hf(
        path=str(path),
        **_OPTIONS | {"inputs": "x"} | options,
        **dict.fromkeys(("name", "image_size", "test_split")),
        cache_dir=str(path.parent / "cache"),
        download=False,
        train_split="train",
        tokenizer="words",
        vocabulary_size=10,
        max_tokens=2,
        channels=1,
        in_memory=True,
        mean=[0.5],
        std=[0.5],
        missing=missing,
    ).load()
