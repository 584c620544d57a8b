"""Files with the rows of all clients, and files with those of each: what nodes of a run read.

Each function writes both kinds for 90 rows of three clients; `owners` has the client of each row.
Every fifth row of a file is for testing, if the source reads marks or files of test rows.
"""

import csv
import json
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

NUM_CLIENTS, _NUM_ROWS = 3, 90
_WORDS = ("red", "blue", "round", "flat", "heavy", "light")


class Files(NamedTuple):
    """Settings that read them.

    Attributes:
        common: of the simulator and of nodes.
        place: the setting of a place, in which {} is `all`, or the number of a client.
        simulated: all settings of the simulator, if the source of nodes knows no clients.
    """

    common: tuple[str, ...]
    place: str
    simulated: tuple[str, ...] = ()

    def words(self, name):
        """Settings that read the files of all clients, or of one."""
        if name == "all" and self.simulated:
            return self.simulated
        return (*self.common, self.place.format(name))


def parts(owners):
    """(name, rows) of the files with all rows, and of each client's."""
    each = [(str(k), np.flatnonzero(owners == k)) for k in range(NUM_CLIENTS)]
    return [("all", np.arange(_NUM_ROWS)), *each]


def _is_test(rows):
    return rows % 5 == 0


def _write_csv(path, header, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([*([header] if header else []), *lines])


def _texts(rng):
    return [" ".join(words) for words in rng.choice(_WORDS, size=(_NUM_ROWS, 4))]


def _tokenizer(folder):
    """The file of a tokenizer, which all clients share."""
    tokenizers = pytest.importorskip("tokenizers")
    special = "<pad>", "<unk>", "<user>", "<assistant>", "<end>"
    numbers = {word: number for number, word in enumerate((*special, *_WORDS))}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    return f"data.tokenizer={folder / 'tokenizer.json'}", "data.max_tokens=6"


def table(folder, rng, owners):
    pytest.importorskip("pyarrow")
    numbers, marks = rng.normal(size=(_NUM_ROWS, 2)).round(3), ("train", "test")
    for name, rows in parts(owners):
        lines = [(*numbers[i], i % 2, f"s{owners[i]}", marks[int(i % 5 == 0)]) for i in rows]
        _write_csv(folder / f"{name}.csv", ("a", "b", "target", "site", "part"), lines)
    common = "data=table", "data.is_test=part", "data.standardise=none", "data.owner=site"
    return Files(common, f"data.path={folder}/{{}}.csv")


def npz(folder, rng, owners):
    inputs = rng.normal(size=(_NUM_ROWS, 4)).astype(np.float32)
    for name, rows in parts(owners):
        marks = {"owner": owners[rows], "is_test": _is_test(rows)}
        np.savez(folder / f"{name}.npz", inputs=inputs[rows], targets=rows % 2, **marks)
    return Files(("data=npz",), f"data.root={folder}/{{}}.npz")


def series(folder, rng, owners):
    pytest.importorskip("pyarrow")
    numbers = rng.normal(size=_NUM_ROWS).round(3)
    for name, rows in parts(owners):
        lines = [(f"s{owners[i]}", numbers[i]) for i in rows]
        _write_csv(folder / f"{name}.csv", ("who", "load"), lines)
    sizes = "data.window=3", "data.horizon=1", "data.season=1"
    common = "data=series", "data.owner=who", "data.time=null", *sizes
    return Files(common, f"data.path={folder}/{{}}.csv")


def _split(rows):
    """(name of a part, its rows)."""
    return ("train", rows[~_is_test(rows)]), ("test", rows[_is_test(rows)])


def _hf(folder, rng, owners, *settings):
    pytest.importorskip("datasets")
    numbers, texts = rng.normal(size=(_NUM_ROWS, 2)).round(3), _texts(rng)
    for name, rows in parts(owners):
        for part, chosen in _split(rows):
            lines = [(*numbers[i], texts[i], i % 2, f"s{owners[i]}") for i in chosen]
            header = "a", "b", "text", "label", "site"
            _write_csv(folder / name / f"{part}.csv", header, lines)
    common = "data=hf", "data.owner=site", f"data.cache_dir={folder}/cache", *settings
    return Files(common, f"data.path={folder}/{{}}")


def hf_numbers(folder, rng, owners):
    return _hf(folder, rng, owners, "data.inputs=[a,b]")


def hf_text(folder, rng, owners):
    return _hf(folder, rng, owners, "data.inputs=text", *_tokenizer(folder))


def hf_images(folder, rng, owners):
    datasets = pytest.importorskip("datasets")
    pixels = rng.integers(256, size=(_NUM_ROWS, 4, 4, 3)).astype(np.uint8)

    def made(rows):
        images, whose = [Image.fromarray(pixels[i]) for i in rows], [f"s{owners[i]}" for i in rows]
        found = {"image": images, "label": (rows % 2).tolist(), "site": whose}
        return datasets.Dataset.from_dict(found)

    for name, rows in parts(owners):
        splits = {part: made(chosen) for part, chosen in _split(rows)}
        datasets.DatasetDict(splits).save_to_disk(folder / name)
    return Files(("data=hf", "data.owner=site"), f"data.path={folder}/{{}}")


def text_folder(folder, rng, owners):
    """Folders of nodes. The simulator reads the same texts as a dataset of rows with owners."""
    simulated = hf_text(folder / "rows", rng, owners)
    for name, rows in parts(owners)[1:]:
        for part, chosen in _split(rows):
            path = folder / "rows" / name / f"{part}.csv"
            with path.open(newline="", encoding="utf-8") as file:
                lines = [(int(row["label"]) + 1, row["text"]) for row in csv.DictReader(file)]
            assert len(lines) == len(chosen)
            _write_csv(folder / name / f"{part}.csv", (), lines)
    common = "data=text_folder", *(word for word in simulated.common if "token" in word)
    return Files(common, f"data.root={folder}/{{}}", simulated.words("all"))


def instructions(folder, rng, owners):
    texts = _texts(rng)
    for name, rows in parts(owners):
        for k in np.unique(owners[rows]):
            lines = [
                json.dumps({"instruction": texts[i], "output": texts[i][::-1]})
                for i in rows[owners[rows] == k]
            ]
            path = folder / name / f"s{k}.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n".join(lines), encoding="utf-8")
    common = "data=instructions", "data.test_fraction=0", *_tokenizer(folder)
    return Files(common, f"data.root={folder}/{{}}")


def _save_image(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def segmentation_folder(folder, rng, owners):
    pixels = rng.integers(256, size=(_NUM_ROWS, 4, 4)).astype(np.uint8)
    for name, rows in parts(owners):
        for i in rows:
            file = f"s{owners[i]}/{i:02}.png"
            _save_image(folder / name / "images" / file, pixels[i])
            _save_image(folder / name / "masks" / file, pixels[i] // 86)
    common = "data=segmentation_folder", "data.test_fraction=0", "data.values=[0,1,2]"
    return Files(common, f"data.root={folder}/{{}}")


def domains(folder, rng, owners):
    """A folder for each client, and a link to all of them."""
    pixels = rng.integers(256, size=(_NUM_ROWS, 4, 4, 3)).astype(np.uint8)
    for i, k in enumerate(owners):
        _save_image(folder / "all" / f"s{k}" / ("cat", "dog")[i % 2] / f"{i:02}.png", pixels[i])
    for k in range(NUM_CLIENTS):
        (folder / str(k)).mkdir()
        (folder / str(k) / f"s{k}").symlink_to(folder / "all" / f"s{k}")
    common = "data=domains", "data.test_fraction=0", "data.image_size=null"
    return Files(common, f"data.root={folder}/{{}}")


def image_folder(folder, rng, owners):
    """Folders of nodes. The simulator reads the same images as domains."""
    common, _, _ = simulated = domains(folder, rng, owners)
    settings = ("data=image_folder", *common[1:])
    for k in range(NUM_CLIENTS):
        (folder / str(k)).rename(folder / f"of {k}")
        (folder / str(k)).symlink_to(folder / "all" / f"s{k}")
    return Files(settings, f"data.root={folder}/{{}}", simulated.words("all"))
