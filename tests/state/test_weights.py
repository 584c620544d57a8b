import io
import os
import pickle

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flfast.state.tensor_file import write_safetensors
from flfast.state.weights import (
    flatten,
    load_weights,
    read_state_dict,
    read_weights,
    write_weights,
)


def model():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_writing_what_was_read_restores_everything():
    source, target = model(), model()
    source(torch.randn(8, 3))
    write_weights(target, read_weights(source))
    for name, value in source.state_dict().items():
        assert torch.equal(value, target.state_dict()[name])


def test_reading_copies():
    net = model()
    weights = read_weights(net)
    with torch.no_grad():
        net[0].weight.zero_()
    assert weights["params"]["0.weight"].abs().sum() > 0


def test_flat_weights_load_as_a_state_dict():
    net = model()
    model().load_state_dict(flatten(read_weights(net)))


def test_foreign_weights_are_refused_by_name_and_shape():
    weights = read_weights(model())
    state = flatten(weights)
    state.pop("0.bias")
    state["extra"] = torch.zeros(1)
    state["2.weight"] = torch.zeros(3, 4)
    with pytest.raises(ValueError, match=r"(?s)missing \['0.bias'\].*extra.*2.weight \[3, 4\]"):
        load_weights(weights, state, source="init_from=x.pt")


def test_tied_parameters_are_read_once():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    assert set(read_weights(net)["params"]) == {"0.weight", "0.bias", "1.bias"}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("weights") / "model.pt"


def saved(content, **options):
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


INTACT = [saved({"a": torch.ones(3)}, _use_new_zipfile_serialization=new) for new in (True, False)]


@given(st.sampled_from(INTACT), st.data())
def test_any_file_gives_weights_or_a_value_error(path, intact, data):
    content = bytearray(intact[: data.draw(st.integers(0, len(intact)))])
    for _ in range(data.draw(st.integers(0, 3)) if content else 0):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(data.draw(st.sampled_from([b"", b"\x80\x02", b"PK\x03\x04"])) + content)
    try:
        assert all(map(torch.is_tensor, read_state_dict(str(path), key="init_from").values()))
    except ValueError as error:
        assert str(error).startswith(f"init_from={path} holds no weights")


SAFETENSORS = safetensors.torch.save({"a": torch.ones(3), "b": torch.zeros(2, 2)}, {"by": "us"})


@given(st.integers(0, len(SAFETENSORS)), st.lists(st.tuples(st.integers(0), st.integers(0, 255))))
def test_any_file_of_safetensors_gives_weights_or_a_value_error(path, size, changes):
    content = bytearray(SAFETENSORS[:size])
    for place, byte in changes if content else []:
        content[place % len(content)] = byte
    path = path.with_suffix(".safetensors")
    path.write_bytes(content)
    try:
        assert all(map(torch.is_tensor, read_state_dict(str(path), key="init_from").values()))
    except ValueError as error:
        assert str(error).startswith(f"init_from={path} holds no weights")


def test_safetensors_hold_any_layout_and_shared_memory(tmp_path):
    whole = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    weights = {"whole": whole, "part": whole[1:3], "same": whole, "number": torch.tensor(3)}
    path = tmp_path / "model.safetensors"
    write_safetensors(path, weights, {})
    found = read_state_dict(str(path), key="init_from")
    assert found.keys() == weights.keys()
    for name, leaf in weights.items():
        torch.testing.assert_close(found[name], leaf, rtol=0, atol=0)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_safetensors_are_the_bytes_that_the_library_writes(tmp_path, dtype):
    shapes = {"b": (3, 5), "a": (), "é": (0, 2), "c.weight": (7,)}
    weights = {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}
    metadata = {"format": "pt\n"}
    path = tmp_path / "model.safetensors"
    write_safetensors(path, weights, metadata)
    assert path.read_bytes() == safetensors.torch.save(weights, metadata)


def test_safetensors_of_several_types_are_read_as_they_were(tmp_path):
    types = [torch.bool, torch.float64, torch.int8, torch.float16, torch.float32, torch.int64]
    weights = {str(dtype): torch.randn(3).to(dtype) for dtype in types}
    path = tmp_path / "model.safetensors"
    write_safetensors(path, weights, {"round": "3", "format": "pt"})
    found = safetensors.torch.load_file(path)
    assert found.keys() == weights.keys()
    for name, leaf in weights.items():
        torch.testing.assert_close(found[name], leaf, rtol=0, atol=0)
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"round": "3", "format": "pt"}


class Attack:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_pickled_code_in_a_file_of_weights_never_runs(path, tmp_path):
    attack = Attack(tmp_path / "was-run")
    old = saved({"a": attack}, _use_new_zipfile_serialization=False)
    for content in (saved({"a": attack}), old, pickle.dumps(attack), saved(model())):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="holds no weights"):
            read_state_dict(str(path), key="init_from")
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize(
    "content",
    [[1], {1: torch.ones(1)}, {"a": torch.eye(2).to_sparse()}, {"a": torch.ones(1) * 1j}],
)
def test_only_flat_state_dicts_of_plain_tensors_are_accepted(path, content):
    path.write_bytes(saved(content))
    with pytest.raises(ValueError, match="holds no weights"):
        read_state_dict(str(path), key="init_from")


def test_weights_with_nan_are_refused_by_name():
    weights = read_weights(model())
    state = flatten(weights)
    state["2.weight"] = torch.full((2, 4), float("nan"))
    with pytest.raises(ValueError, match=r"init_from=x.pt holds NaN or infinity in 2.weight"):
        load_weights(weights, state, source="init_from=x.pt")
