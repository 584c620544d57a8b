import io
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image as Picture

from flfast.datamodules.sources.hf import Hf
from flfast.tasks.task_type import IGNORED


def picture(value, size=(5, 4)):
    return Picture.fromarray(np.full((size[1], size[0], 3), value, np.uint8))


def rows(num, first=0):
    from datasets import ClassLabel, Dataset, Features, Image, List, Value

    numbers = range(first, first + num)
    features = Features(
        {
            "image": Image(),
            "label": ClassLabel(names=["cat", "dog", "fox"]),
            "text": Value("string"),
            "x": Value("float64"),
            "count": Value("int64"),
            "pair": List(Value("float32"), length=2),
            "tokens": List(Value("int64"), length=3),
            "who": Value("string"),
            "ragged": List(Value("float32")),
        }
    )
    return Dataset.from_dict(
        {
            "image": [picture(10 * i) for i in numbers],
            "label": [i % 2 for i in numbers],
            "text": [f"word{i % 2} and more" for i in numbers],
            "x": [i / 2 for i in numbers],
            "count": list(numbers),
            "pair": [[i, -i] for i in numbers],
            "tokens": [[i, 1, 2] for i in numbers],
            "who": ["abc"[i % 3] for i in numbers],
            "ragged": [[0.0] * (i % 3) for i in numbers],
        },
        features=features,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same rows as a saved folder and as files; 6 for training and 3 for testing."""
    from datasets import DatasetDict

    root = tmp_path_factory.mktemp("hf")
    both = DatasetDict(train=rows(6), test=rows(3, first=6))
    both.save_to_disk(root / "saved")
    rows(6).save_to_disk(root / "one")
    rows(6).to_parquet(root / "rows.parquet")
    for name, part in both.items():
        (root / "files").mkdir(exist_ok=True)
        part.to_parquet(root / "files" / f"{name}-00000-of-00001.parquet")
    plain = rows(6).select_columns(["x", "count", "who", "text"])
    plain.to_csv(root / "rows.csv")
    plain.to_json(root / "rows.jsonl")
    return root


@pytest.fixture
def load(folder):
    def load(path, **changes):
        options = {
            "path": str(folder / path),
            "name": None,
            "download": False,
            "cache_dir": str(folder / "cache"),
            "inputs": ["x", "count"],
            "targets": "label",
            "owner": None,
            "train_split": "train",
            "test_split": "test",
            "test_fraction": 0.0,
            "missing": "error",
            "task": None,
            "tokenizer": "words",
            "vocabulary_size": 50,
            "max_tokens": 2,
            "image_size": None,
            "channels": 3,
            "in_memory": True,
            "mean": [0.5],
            "std": [0.5],
            "seed": 0,
        }
        return Hf(**options | changes).load()

    return load


@pytest.mark.parametrize(
    ("path", "num"),
    [("saved", 9), ("files", 9), ("one", 6), ("rows.parquet", 6), ("*.parquet", 6)],
)
def test_every_place_gives_the_same_rows(load, path, num):
    examples = load(path)
    assert examples.inputs.tolist() == [[i / 2, i] for i in range(num)]
    assert examples.targets.tolist() == [i % 2 for i in range(num)]
    assert examples.class_names == ("cat", "dog", "fox")  # a class may have no rows
    if num == 9:
        assert examples.is_test.tolist() == [False] * 6 + [True] * 3
    else:
        assert examples.is_test is None


@pytest.mark.parametrize("path", ["rows.csv", "rows.jsonl"])
def test_files_of_text(load, path):
    examples = load(path, inputs="x", targets="count", owner="who")
    assert examples.inputs.tolist() == [[i / 2] for i in range(6)]
    assert examples.targets.tolist() == [*range(6)]
    assert examples.owner.tolist() == [0, 1, 2] * 2
    assert examples.client_names == ("a", "b", "c")


@pytest.mark.parametrize("in_memory", [True, False])
def test_images_are_decoded(load, in_memory):
    options = {"inputs": "image", "in_memory": in_memory}
    examples = load("saved", **options)
    assert examples.input_shape == (3, 4, 5)
    assert examples.inputs[7].dtype == torch.uint8
    assert examples.inputs[7].unique().tolist() == [70]
    scaled = load("rows.parquet", **options, channels=1, image_size=3)
    assert scaled.inputs[2].shape == scaled.input_shape == (1, 3, 3)


def test_text_is_tokens_for_classes_and_windows_for_the_next_token(load):
    examples = load("saved", inputs="text", max_tokens=4)
    assert examples.task == "classification"
    texts = ["".join(examples.vocabulary[token] for token in row) for row in examples.inputs]
    assert texts[:2] == [" word0 and more <pad>", " word1 and more <pad>"]
    language = load("saved", inputs="text", targets=None, owner="who")
    assert language.task == "language"
    assert language.num_classes == len(language.vocabulary)
    assert language.owner.tolist() == [0, 1, 2] * 3
    assert language.client_names == ("a", "b", "c")
    last = language.vocabulary.index(" more")
    assert language.targets[0].tolist() == [*language.inputs[0, 1:].tolist(), last]
    assert (language.targets != IGNORED).all()
    assert language.is_test.tolist() == [False] * 6 + [True] * 3


@pytest.mark.parametrize(
    ("options", "task", "targets"),
    [
        ({"targets": "x"}, "regression", [[0.0], [0.5]]),
        ({"targets": "pair"}, "regression", [[0.0, 0.0], [1.0, -1.0]]),
        ({"targets": ["x", "count"]}, "regression", [[0.0, 0.0], [0.5, 1.0]]),
        ({"targets": "count", "task": "regression"}, "regression", [[0.0], [1.0]]),
        ({"targets": "who"}, "classification", [0, 1]),
        ({"targets": "label", "task": "multilabel"}, "multilabel", [[0], [1]]),
    ],
)
def test_targets_by_their_type(load, options, task, targets):
    examples = load("one", inputs="tokens", **options)
    assert examples.task == task
    assert examples.targets[:2].tolist() == targets
    assert examples.inputs.dtype == torch.int64
    assert examples.input_shape == (3,)


def test_lists_of_numbers_keep_their_shape(load):
    assert load("one", inputs="pair").inputs.tolist() == [[i, -i] for i in range(6)]
    joined = load("one", inputs=["pair", "x"])
    assert joined.inputs.tolist() == [[i, -i, i / 2] for i in range(6)]


def test_a_test_set_is_drawn_from_every_client(load):
    examples = load("one", owner="who", test_fraction=0.5)
    assert np.bincount(examples.owner[examples.is_test]).tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("path", "changes", "message"),
    [
        ("one", {"inputs": "picture"}, "data.inputs='picture' is no column of .*allowed: image"),
        ("one", {"targets": "y"}, "data.targets='y' is no column"),
        ("one", {"owner": "y"}, "data.owner='y' is no column"),
        ("one", {"inputs": ["text", "x"]}, "are numbers, text; allowed: one column, or several"),
        ("one", {"inputs": []}, "are no columns; allowed"),
        ("one", {"inputs": "ragged"}, "data.inputs=ragged: the column is List"),
        ("one", {"targets": None, "inputs": "image"}, "data.targets=null .* holds an image"),
        ("one", {"targets": "tokens"}, "allowed for lists: task=regression, or multilabel"),
        ("saved", {"train_split": "all"}, "data.train_split=all: .* has the splits train, test"),
        ("nothing", {}, "is no file and no folder"),
        ("rows.*", {}, r"files end in \.csv, \.jsonl, \.parquet; allowed: one of"),
    ],
)
def test_what_does_not_fit_is_refused(load, path, changes, message):
    with pytest.raises(ValueError, match=message):
        load(path, **changes)


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.parquet", "no"), ("a.jsonl", "{"), ("a.arrow", "no"), ("state.json", json.dumps({}))],
)
def test_damaged_files_are_named(load, tmp_path, name, content):
    (tmp_path / name).write_text(content)
    path = tmp_path if name == "state.json" else tmp_path / name
    with pytest.raises(ValueError, match=r"data.path=.* cannot be read as a dataset"):
        load(path)


def test_code_in_a_folder_is_never_run(load, tmp_path):
    root = tmp_path / "mine"
    root.mkdir()
    (root / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ValueError, match="cannot be read as a dataset"):
        load(root)
    assert not (tmp_path / "ran").exists()


def test_images_of_several_sizes_need_one(load, tmp_path):
    from datasets import ClassLabel, Dataset, Features, Image

    data = Dataset.from_dict(
        {"image": [picture(1), picture(2, size=(6, 4))], "label": [0, 1]},
        features=Features({"image": Image(), "label": ClassLabel(num_classes=2)}),
    )
    data.save_to_disk(tmp_path / "sizes")
    with pytest.raises(ValueError, match=r"image 0 has 4 x 5 pixels, image 1 4 x 6; set data\.im"):
        load(tmp_path / "sizes", inputs="image")


@pytest.fixture
def server():
    """A server on this machine: (its address, requests that it got)."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET  # noqa: N815 - the library's name

        def log_message(self, *_):
            pass

    listening = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_port}/x", asked
    listening.shutdown()
    listening.server_close()


METADATA = {
    "a file": "configs: [{config_name: default, data_files: URL.csv}]",
    "of a split": "configs:\n- config_name: a\n  data_files: [{split: train, path: [URL.csv]}]",
    "escaped": r'configs: [{config_name: default, data_files: "http:\x2f\x2fURL.csv"}]',
    "repeated": "x: &x URL.csv\nconfigs: [{config_name: default, data_files: *x}]",
    "a chain": "configs: [{config_name: default, data_files: 'simplecache::URL.csv'}]",
    "a hub": "configs: [{config_name: default, data_files: 'hf://datasets/a/b/x.csv'}]",
    "a folder": "configs: [{config_name: default, data_dir: URL}]",
}


@pytest.mark.parametrize("name", ["README.md", ".huggingface.yaml"])
@pytest.mark.parametrize("kind", METADATA)
def test_metadata_of_a_local_folder_open_no_network(load, tmp_path, server, kind, name):
    url, asked = server
    text = METADATA[kind].replace("x2fURL", "x2f" + url[7:]).replace("URL", url)
    (tmp_path / name).write_text(f"---\n{text}\n---\n" if name == "README.md" else text)
    (tmp_path / "a.csv").write_text("x,label\n1,0\n2,1\n")
    with pytest.raises(ValueError, match=rf"{name} names files elsewhere; .*download=true"):
        load(tmp_path, inputs="x")
    assert not asked


def test_addresses_in_metadata_that_name_no_files_are_no_reason(load, tmp_path, server):
    url, asked = server
    about = f"license_link: {url}\nconfigs:\n- config_name: default\n  data_files: a.csv"
    (tmp_path / "README.md").write_text(f"---\n{about}\n---\nSee {url}, configs: {url}\n")
    (tmp_path / "a.csv").write_text("x,label\n1,0\n2,1\n")
    assert len(load(tmp_path, inputs="x").inputs) == 2
    assert not asked


def test_images_elsewhere_are_not_fetched(load, tmp_path, server):
    from datasets import Features, Image, List, Value

    url, asked = server
    features = Features({"image": Image(), "others": List(Image()), "label": Value("int64")})
    stream = io.BytesIO()
    picture(3).save(stream, "png")
    there, away = ({"bytes": content, "path": url} for content in (stream.getvalue(), None))
    for name, image in (("there", there), ("away", away)):
        content = {"image": [image] * 4, "others": [[away]] * 4, "label": [0, 1] * 2}
        table = pa.Table.from_pydict(content, schema=features.arrow_schema)
        pq.write_table(table, tmp_path / f"{name}.parquet")
    found = load(tmp_path / "there.parquet", inputs="image", in_memory=False)
    assert found.inputs[0].shape[0] == 3
    with pytest.raises(ValueError, match=r"image names images elsewhere; .*download=true"):
        load(tmp_path / "away.parquet", inputs="image")
    assert not asked
