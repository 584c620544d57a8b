"""Loads datasets of the library `datasets`: from files, folders, or by name from a hub."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from functools import partial
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from flfast.datamodules.bounds import check_archive, check_parquet, free_disk, open_gzip
from flfast.datamodules.sources.table_files import check_csv
from flfast.state.extras import import_extra
from flfast.state.regular_file import read_text, require_file

if TYPE_CHECKING:
    from datasets import Dataset

_BUILDERS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".arrow": "arrow",
}


def load_splits(
    path: str, *, name: str | None, names: list[str], download: bool, cache_dir: str | None
) -> dict[str, Dataset]:
    """All splits of a dataset; one that has no splits is `train`.

    No code of a dataset is run: version 4 of the library has no loading scripts. A path is a file
    or a glob pattern (`.parquet`, `.csv`, `.json`, `.jsonl`, `.arrow`), a folder that
    `save_to_disk` has written, a folder of such files, or a name on the hub. Columns of `names`
    are read as text.

    Raises:
        ValueError: if nothing is found there, or it cannot be read.
    """
    library = import_extra("datasets", extra="hf")
    if int(library.__version__.split(".")[0]) < 4:
        raise ValueError(
            f"data=hf needs datasets >= 4, which runs no code of datasets; {library.__version__} "
            "is installed; run: pip install -U flfast[hf]"
        )
    try:
        library.disable_progress_bars()  # they would break the run's own
        loaded = _load(library, path, name, names, download, cache_dir)
    except ValueError as error:
        raise error if str(error).startswith("data.") else _unreadable(path, error) from None
    except Exception as error:  # noqa: BLE001 - the library raises errors of many libraries
        raise _unreadable(path, error) from None
    if isinstance(loaded, library.Dataset):
        return {"train": loaded}
    return dict(loaded)


def _unreadable(path: str, error: Exception) -> ValueError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return ValueError(f"data.path={path} cannot be read as a dataset: {reason}")


def _check_files(paths: Iterable[Path], cache: Path) -> None:
    """Check quotes and unpacked sizes before the library reads the files.

    It unpacks them into its cache, so what is free on the disk counts, and not the memory.

    Raises:
        ValueError: if a file is damaged, or too large once it is unpacked from zip or gzip.
    """
    free = free_disk(cache)
    for path in paths:
        require_file(path)
        # `datasets` finds the compression from the first bytes, not from the name.
        with path.open("rb") as stream:
            start = stream.read(4)
        if path.name.endswith((".csv", ".csv.gz")):
            check_csv(path, free=free)
        elif path.suffix == ".parquet":
            check_parquet(path, free=free)
        elif start == b"PK\x03\x04":
            check_archive(path, free=free)
        elif start.startswith(b"\x1f\x8b"):
            open_gzip(path, free=free).close()


def _check_names(folder: Path) -> None:
    """Refuse a folder whose metadata name files elsewhere, which the library would open.

    Raises:
        ValueError: if they do.
    """
    from huggingface_hub import DatasetCard

    for path in filter(Path.exists, (folder / "README.md", folder / ".huggingface.yaml")):
        text = read_text(path)
        about = DatasetCard(text).data.to_dict() if path.suffix == ".md" else yaml.safe_load(text)
        # Pickled, a text that YAML repeats is there once.
        if about and b"://" in pickle.dumps(about.get("configs")):
            raise ValueError(
                f"data.path={folder}: {path.name} names files elsewhere; allowed: files of the "
                "folder, or data.download=true"
            )


def _name(missing: tuple[str, ...], cell: str) -> str:
    return "" if cell.strip() in missing else cell


def _load(
    library: Any,
    path: str,
    name: str | None,
    names: list[str],
    download: bool,  # noqa: FBT001 - not public
    cache_dir: str | None,
) -> Any:
    from pyarrow.csv import ConvertOptions

    place = Path(path).expanduser()
    if any((place / file).is_file() for file in ("state.json", "dataset_dict.json")):
        return library.load_from_disk(str(place))
    cache = Path(cache_dir or library.config.HF_DATASETS_CACHE)

    def load(builder: str, **options: Any) -> Any:
        if hasattr(library.load_dataset_builder(builder, **options).config, "converters"):  # CSV
            as_name = partial(_name, tuple(ConvertOptions().null_values))
            options["converters"] = dict.fromkeys(names, as_name)
        return library.load_dataset(builder, **options)

    if place.is_dir():
        _check_names(place) if not download else None
        _check_files((path for path in place.rglob("*") if path.is_file()), cache)
        return load(str(place), name=name, cache_dir=cache_dir)
    if files := sorted(glob(str(place))):  # noqa: PTH207 - the pattern may be absolute
        suffixes = {Path(file).suffix for file in files}
        if len(suffixes) > 1 or not suffixes <= set(_BUILDERS):
            raise ValueError(
                f"data.path={path}: files end in {', '.join(sorted(suffixes))}; allowed: one of "
                f"{', '.join(_BUILDERS)}"
            )
        _check_files(map(Path, files), cache)
        return load(_BUILDERS[suffixes.pop()], data_files=files, cache_dir=cache_dir)
    if not download:
        raise ValueError(
            f"data.path={path} is no file and no folder; allowed: a file "
            f"({', '.join(_BUILDERS)}), a folder of save_to_disk or of such files, or with "
            "data.download=true the name of a dataset on the Hugging Face hub"
        )
    return load(path, name=name, cache_dir=cache_dir)
