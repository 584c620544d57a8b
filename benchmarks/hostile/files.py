"""Damaged files of data: one message that names the file, or a run that is right.

Some damage changes numbers as a person might have changed them, such as a flipped byte within a
pixel. Such a run may be different. Damage that no person means, such as an empty cell, must be
refused, or said, or leave all numbers as they were.
"""

import gzip
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from benchmarks.hostile.command import Ended, run
from flfast import train
from flfast.output.results.table import read_rows

_TINY = (
    *("model=logistic", "rounds=1", "local_epochs=1", "strategy=single", "trainer.devices=1"),
    "callbacks=none",
)


class Kind(NamedTuple):
    """A kind of data.

    Attributes:
        words: overrides that read it; `{}` is its folder.
        write: writes it into a folder.
        damage: by name, what changes a file so that numbers must not change in silence.
    """

    words: tuple[str, ...]
    write: Callable[[Path], None]
    damage: dict[str, Callable[[Path, random.Random], None]]


def cases(num: int, seed: int) -> Iterator[tuple[str, str, int]]:
    """(kind, damage, seed) of `num` cases; every damage of every kind before one comes twice."""
    rng = random.Random(f"files {seed}")
    every = [(kind, damage) for kind in KINDS for damage in [*KINDS[kind].damage, *_ANY]]
    rng.shuffle(every)
    for number in range(num):
        yield *every[number % len(every)], rng.randrange(2**32)


def judged(case: tuple[str, str, int], folder: Path) -> tuple[str, Ended]:
    """How a run on damaged data ends: as `Ended.verdict`, `warned`, or different in silence."""
    name, damage, seed = case
    kind, rng = KINDS[name], random.Random(seed)
    clean, data = folder / "clean", folder / "data"
    for place in (clean, data):
        place.mkdir(parents=True)
        kind.write(place)
    meant_to_show = damage in kind.damage
    (kind.damage if meant_to_show else _ANY)[damage](data, rng)
    ended = _trained(kind, data, folder / "run")
    if ended.verdict != "done" or not meant_to_show:
        return ended.verdict, ended
    whole = _trained(kind, clean, folder / "whole")
    same = _rows(folder / "run" / "run") == _rows(folder / "whole" / "run")
    if _warnings(ended.said) - _warnings(whole.said):
        return "warned", ended
    return "done" if same else "silent: other numbers without a word", ended


def _trained(kind: Kind, data: Path, folder: Path) -> Ended:
    words = [*_TINY, *(word.format(data) for word in kind.words)]
    return run(train.main, [*words, f"hydra.run.dir={folder / 'run'}"], folder)


def _warnings(said: str) -> set[str]:
    return {line.split("] - ")[-1] for line in said.splitlines() if "WARN" in line}


def _rows(folder: Path) -> list[dict[str, str]]:
    slow = ("time/", "train/samples_per_s")
    return [
        {name: cell for name, cell in row.items() if not name.startswith(slow)}
        for row in read_rows(folder / "metrics.csv")
    ]


# Kinds of data.

_IID = ("partition=iid", "partition.num_clients=3")
_ROWS = 60


def _table(folder: Path) -> None:
    rng = random.Random(0)
    lines = ["age,weight,town,who,part,target"]
    for row in range(_ROWS):
        town, part = rng.choice(("Rome", "Oslo", "Bonn")), "test" if row % 5 == 0 else "train"
        values = f"{rng.randint(20, 80)},{rng.gauss(70, 9):.2f},{town},c{row % 3},{part}"
        lines.append(f"{values},{rng.choice(('ill', 'well'))}")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")


def _arrays(folder: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(
        folder / "arrays.npz",
        inputs=rng.standard_normal((_ROWS, 4)).astype(np.float32),
        targets=rng.integers(0, 3, _ROWS),
        owner=np.arange(_ROWS) % 3,
    )


def _images(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(_ROWS // 2):
        place = folder / "images" / ("cats", "dogs")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (8, 8), np.uint8)).save(place / f"{number}.png")


def _idx(folder: Path) -> None:
    rng = np.random.default_rng(0)
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, num in (("train", 60000), ("t10k", 10000)):
        pixels = rng.integers(0, 255, (64, 28, 28), np.uint8)
        pixels = np.resize(pixels, (num, 28, 28))
        labels = np.resize(rng.integers(0, 10, 64, np.uint8), num)
        sizes = num.to_bytes(4, "big")
        side = (28).to_bytes(4, "big")
        head = b"\0\0\x08\x03" + sizes + side + side
        for name, data in (
            ("images-idx3", head + pixels.tobytes()),
            ("labels-idx1", b"\0\0\x08\x01" + sizes + labels.tobytes()),
        ):
            with gzip.open(raw / f"{part}-{name}-ubyte.gz", "wb", compresslevel=1) as file:
                file.write(data)


def _texts(folder: Path) -> None:
    rng = random.Random(0)
    lines = [
        f"{number % 2 + 1},"
        + " ".join(rng.choice(("round", "client", "server")) for _ in range(9))
        for number in range(_ROWS)
    ]
    (folder / "texts").mkdir()
    for part in ("train", "test"):
        (folder / "texts" / f"{part}.csv").write_text("\n".join(lines) + "\n")


# Damage that must not pass in silence.


def _cell(column: int, value: str) -> Callable[[Path, random.Random], None]:
    def change(folder: Path, rng: random.Random) -> None:
        path = folder / "table.csv"
        lines = path.read_text().splitlines()
        row = rng.randrange(1, len(lines))
        cells = lines[row].split(",")
        cells[column] = value
        lines[row] = ",".join(cells)
        path.write_text("\n".join(lines) + "\n")

    return change


def _text(change: Callable[[str], str]) -> Callable[[Path, random.Random], None]:
    def changed(folder: Path, _: random.Random) -> None:
        path = folder / "table.csv"
        path.write_text(change(path.read_text()))

    return changed


def _array(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[..., None]:
    def changed(folder: Path, _: random.Random) -> None:
        path = folder / "arrays.npz"
        with np.load(path) as found:
            arrays = dict(found)
        arrays[name] = change(arrays[name].copy())
        np.savez(path, **arrays)

    return changed


def _with(value: float, dtype: type | None = None) -> Callable[[np.ndarray], np.ndarray]:
    def put(array: np.ndarray) -> np.ndarray:
        array = array.astype(dtype or array.dtype)
        array.reshape(-1)[7] = value
        return array

    return put


def _image(change: Callable[[Path, np.ndarray], None]) -> Callable[[Path, random.Random], None]:
    def changed(folder: Path, rng: random.Random) -> None:
        path = rng.choice(sorted(folder.rglob("*.png")))
        change(path, np.asarray(Image.open(path)))

    return changed


def _loop(folder: Path, _: random.Random) -> None:
    (folder / "images" / "cats" / "again").symlink_to(folder / "images")


def _note(path: Path, _: np.ndarray) -> None:
    path.with_name("notes.txt").write_text("x")


def _sixteen_bits(path: Path, pixels: np.ndarray) -> None:
    Image.fromarray(pixels.astype(np.uint16) * 257).save(path)


def _float_tiff(path: Path, pixels: np.ndarray) -> None:
    path.unlink()
    Image.fromarray((pixels / 255).astype(np.float32)).save(path.with_suffix(".tiff"))


_MISSING = {
    f"{value!r} in {name}": _cell(column, value)
    for value in ("", "nan", "NA", "null", "?")
    for column, name in enumerate(("age", "weight", "town", "who", "part", "target"))
}
KINDS: dict[str, Kind] = {
    "table": Kind(
        (
            *("data=table", "data.path={}/table.csv", "data.owner=who", "data.is_test=part"),
            *("partition=natural",),
        ),
        _table,
        {
            **_MISSING,
            "1,234": _cell(0, '"1,234"'),
            "1.5x": _cell(1, "1.5x"),
            "1e300": _cell(1, "1e300"),
            "inf": _cell(1, "inf"),
            "stray quote": _cell(2, '"Rome'),
            "column twice": _text(lambda text: text.replace("weight", "age", 1)),
            "a comma more": _cell(2, "Rome,x"),
            "other case": _cell(5, "ILL"),
            "a blank": _cell(3, " c1"),
            "case of a category": _cell(2, "ROME"),
            "one class": _text(lambda text: text.replace("ill\n", "well\n")),
        },
    ),
    "npz": Kind(
        ("data=npz", "data.root={}/arrays.npz", "partition=natural"),
        _arrays,
        {
            "NaN input": _array("inputs", _with(float("nan"))),
            "infinite input": _array("inputs", _with(float("inf"))),
            "owner -1": _array("owner", _with(-1)),
            "owner NaN": _array("owner", _with(float("nan"), float)),
            "owner 1.5": _array("owner", _with(1.5, float)),
            "owner ''": _array("owner", lambda found: np.where(found == 1, "", found.astype(str))),
            "target -1": _array("targets", _with(-1)),
            "target NaN": _array("targets", _with(float("nan"), float)),
            "target 1e300": _array("targets", _with(1e300, float)),
            "a target less": _array("targets", lambda found: found[:-1]),
            "one class": _array("targets", np.zeros_like),
            "objects": _array("targets", lambda found: found.astype(object)),
        },
    ),
    "images": Kind(
        ("data=image_folder", "data.root={}/images", "data.channels=1", *_IID),
        _images,
        {
            "16 bits": _image(_sixteen_bits),
            "float TIFF": _image(_float_tiff),
            "a loop of links": _loop,
            "a text": _image(_note),
        },
    ),
    "idx": Kind(("data=mnist", "data.root={}", "data.download=false", *_IID), _idx, {}),
    "texts": Kind(
        (
            *("data=text_folder", "data.root={}/texts", "model=lstm", *_IID),
            *("data.max_tokens=8",),
        ),
        _texts,
        {},
    ),
}


# Damage of any file.


def _bytes(change: Callable[[bytearray, random.Random], bytes]) -> Callable[..., None]:
    def changed(folder: Path, rng: random.Random) -> None:
        path = _some_file(folder, rng)
        path.write_bytes(change(bytearray(path.read_bytes()), rng))

    return changed


def _some_file(folder: Path, rng: random.Random) -> Path:
    return rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))


def _flip(data: bytearray, rng: random.Random) -> bytes:
    for _ in range(3):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _replaced(replace: Callable[[Path], object]) -> Callable[[Path, random.Random], None]:
    def changed(folder: Path, rng: random.Random) -> None:
        path = _some_file(folder, rng)
        path.unlink()
        replace(path)

    return changed


_ANY: dict[str, Callable[[Path, random.Random], None]] = {
    "flipped bits": _bytes(_flip),
    "flipped bits in the header": _bytes(
        lambda data, rng: _flip(data[:40], rng) + bytes(data[40:])
    ),
    "cut": _bytes(lambda data, rng: bytes(data[: rng.randrange(len(data))])),
    "empty": _bytes(lambda data, rng: b""),
    "longer": _bytes(lambda data, rng: bytes(data) + rng.randbytes(50)),
    "a block of zeros": _bytes(lambda data, rng: bytes(data[:60]) + bytes(60) + bytes(data[120:])),
    "random": _bytes(lambda data, rng: rng.randbytes(len(data) % 5000)),
    "UTF-16": _bytes(lambda data, rng: bytes(data).decode("latin-1").encode("utf-16")),
    "Latin-1": _bytes(lambda data, rng: "ü".encode("latin-1") + bytes(data)),
    "returns": _bytes(lambda data, rng: bytes(data).replace(b"\n", b"\r\n")),
    "zeros packed": _bytes(lambda data, rng: gzip.compress(bytes(200_000_000), 1)),
    "gone": _replaced(lambda path: None),
    "a folder": _replaced(Path.mkdir),
    "a pipe": _replaced(os.mkfifo),
    "a device": _replaced(lambda path: path.symlink_to("/dev/zero")),
    "a link to itself": _replaced(lambda path: path.symlink_to(path)),
    "unreadable": _replaced(lambda path: path.symlink_to("/proc/self/mem")),
}
