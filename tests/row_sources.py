"""The sources `table` and `hf` with short options, for files of rows."""

from pathlib import Path

from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.hf import hf
from flfast.datamodules.sources.tabular import table

_OPTIONS = {"targets": "y", "owner": "who", "test_fraction": 0.0, "task": None, "seed": 0}


def read_table(path: Path, missing: str = "error", **options: object) -> Examples:
    """Examples of `data=table`.

    Args:
        path: of the file.
        missing: as of `table`.
        options: in place of the default ones.
    """
    names = {"numeric": ["x"], "categorical": ["town"], "is_test": "part"}
    return table(
        path=str(path),
        **_OPTIONS | names | options,
        standardise="none",
        standardise_targets=False,
        missing=missing,
    )


def read_hf(path: Path, missing: str = "error", **options: object) -> Examples:
    """Examples of `data=hf`.

    Args:
        path: of the file.
        missing: as of `hf`.
        options: in place of the default ones.
    """
    return hf(
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
    )
