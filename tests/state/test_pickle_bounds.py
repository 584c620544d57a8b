"""Files of strangers that torch would read for ever are refused; those that it writes are not."""

import io
import struct
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path

import lightning
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from flfast.checkpoints.files import read_tensors
from flfast.checkpoints.folders import BrokenCheckpointError
from flfast.state import tensor_file
from flfast.state.tensor_file import check_tensors
from flfast.state.weights import read_state_dict

PACKAGE = Path(tensor_file.__file__).parents[1]
TEXT = b"X\x01\x00\x00\x00a"
SEED = {"tuple": b")", "list": b"]", "dict": b"}", "named": b"ccollections\nOrderedDict\n)R"}
WAYS = {
    "key": b"}%sNs",
    "keys": b"}(%sNu",
    "set": b"cbuiltins\nset\n](%se\x85R",
    "pairs": b"ccollections\nOrderedDict\n](%sN\x86e\x85R",
    "counter": b"ccollections\nCounter\n](%se\x85R",
    "layout": b"ctorch.serialization\n_get_layout\n%s\x85R",
    "storage": b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n%sX\x03\x00\x00\x00cpuK\x01tQ",
    "value": TEXT.join([b"}", b"%ss"]),
}


def torch_file(path, pickled, *, compression=zipfile.ZIP_STORED):
    """A file as torch writes one, with another pickle."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("a/byteorder", "little")
        archive.writestr("a/version", "3\n")
    return path


def put(number):
    return b"r" + struct.pack("<I", number)


def got(number):
    return b"j" + struct.pack("<I", number)


def nested(levels, kind):
    """A value that holds the last one several times, which holds the one before, ..."""
    found = SEED[kind] + put(0)
    for number, copies in enumerate(levels):
        many = got(number) * copies
        if kind == "tuple":
            found += b"(" + many + b"t"
        elif kind == "list":
            found += b"](" + many + b"e"
        else:
            items = b"".join(b"K%c" % place + got(number) for place in range(copies))
            found += SEED[kind] + b"(" + items + b"u"
        found += put(number + 1)
    # In one tuple with all that stays on the stack, which torch does not pop.
    return b"\x80\x02(" + found, got(len(levels))


def refused(path):
    """Both readers refuse a file within a second, in a line that names it."""
    for read, error in (
        (lambda: read_tensors(path), BrokenCheckpointError),
        (lambda: read_state_dict(str(path), key="init_from"), ValueError),
    ):
        with pytest.raises(error) as caught:
            read()
        text = str(caught.value)
        assert str(path) in text and "\n" not in text
    return text


@given(
    levels=st.lists(st.integers(2, 200), min_size=30, max_size=60),
    kind=st.sampled_from([*SEED]),
    way=st.sampled_from([*WAYS]),
)
@settings(max_examples=60, deadline=None)
def test_what_doubles_at_each_level_is_refused_at_once(tmp_path_factory, levels, kind, way):
    start, bomb = nested(levels, kind)
    pickled = start + WAYS[way] % bomb + b"t."
    path = torch_file(tmp_path_factory.mktemp("bomb") / "model.pt", pickled)
    assert "might be read for ever" in refused(path)


LATE = b"\x80\x02(" + b"".join(b"]" + put(k) for k in range(40))
HEX = b"c_codecs\nencode\n%sX\x03\x00\x00\x00hex\x86R"


def hex_digits(num):
    found = b"c_codecs\nencode\nX\x02\x00\x00\x00aaX\x06\x00\x00\x00latin1\x86R"
    for _ in range(num):
        found = HEX % found
    return found


@pytest.mark.parametrize(
    "pickled",
    {
        "deep lists": b"\x80\x02" + b"]" * 10**5 + b"a" * (10**5 - 1) + b".",
        "a deep tuple": b"\x80\x02})" + b"\x85" * 10**5 + b"Ns.",
        "filled after it was copied": LATE
        + b"".join(got(k) + b"(" + got(k + 1) * 2 + b"e" for k in range(39))
        + b"t.",
        "itself": b"\x80\x02]" + put(0) + got(0) + b"a.",
        "a duplicate": b"\x80\x02}X\x01\x00\x00\x00a)" + b"2\x86" * 60 + b"s.",
        "hexadecimal digits": b"\x80\x02" + hex_digits(40) + b".",
        "zeros": b"\x80\x02c__builtin__\nbytearray\n\x8a\x05\x00\x00\x00\x00\x01\x85R.",
    }.items(),
    ids=lambda item: item[0],
)
def test_what_else_takes_for_ever_is_refused(tmp_path, pickled):
    assert "might be read for ever" in refused(torch_file(tmp_path / "a.pt", pickled[1]))


def test_a_packed_file_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "a.pt"
    torch_file(path, b"\x80\x02" + b"(" * 10**7 + b".", compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 10**5
    assert "torch writes no file" in refused(path)


def test_a_bomb_in_the_old_format_is_refused(tmp_path):
    stream = io.BytesIO()
    torch.save({}, stream, _use_new_zipfile_serialization=False)
    start, bomb = nested([2] * 60, "tuple")
    old = stream.getvalue().replace(b"\x80\x02}q\x00.", start + WAYS["key"] % bomb + b"t.")
    (tmp_path / "a.pt").write_bytes(old)
    with pytest.raises(ValueError, match="might be read for ever"):
        check_tensors(tmp_path / "a.pt")


TENSORS = st.sampled_from([torch.ones(2, 3), torch.zeros(0), nn.Parameter(torch.ones(1))])
LEAVES = TENSORS | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
KEYS = st.text(max_size=9) | st.integers(0, 9) | st.tuples(st.integers(0, 9), st.text(max_size=2))
VALUES = st.recursive(
    LEAVES | st.text() | st.binary(min_size=1) | st.just(torch.float32) | st.sets(st.integers()),
    lambda values: (
        st.lists(values)
        | st.lists(values).map(tuple)
        | st.dictionaries(KEYS, values)
        | st.dictionaries(KEYS, values).map(OrderedDict)
    ),
    max_leaves=20,
)


@given(value=VALUES, times=st.integers(1, 30), zipped=st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_torch_saves_and_loads_is_not_refused(tmp_path_factory, value, times, zipped):
    path = tmp_path_factory.mktemp("saved") / "a.pt"
    torch.save({"a": [value] * times}, path, _use_new_zipfile_serialization=zipped)
    torch.load(path, weights_only=True)
    check_tensors(path)


class Learner(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters(
            {"sizes": [1, (2, 3)], "names": ("a",), "both": [[0.9] * 9] * 99}
        )
        self.net = nn.Sequential(*[nn.Linear(4, 4, dtype=torch.float64) for _ in range(50)])

    def training_step(self, batch, _):
        return self.net(batch[0]).sum()

    def configure_optimizers(self):
        optimizer = torch.optim.Adam([{"params": [p]} for p in self.parameters()], lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 1, 2])]


def test_a_checkpoint_of_lightning_is_not_refused(tmp_path):
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = torch.utils.data.TensorDataset(torch.ones(2, 4, dtype=torch.float64))
    trainer.fit(Learner(), torch.utils.data.DataLoader(data))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    check_tensors(tmp_path / "a.ckpt")
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert isinstance(saved["lr_schedulers"][0]["milestones"], Counter)
    assert saved["optimizer_states"][0]["state"].keys() == set(range(100))
    with pytest.raises(ValueError, match="is a checkpoint"):
        read_state_dict(str(tmp_path / "a.ckpt"), key="init_from")
