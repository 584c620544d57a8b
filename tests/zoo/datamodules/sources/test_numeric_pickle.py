import io
import os
import pickle
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flfast.zoo.datamodules.sources.numeric_pickle import load_arrays

NUMBERS = st.sampled_from(["u1", "i2", ">i4", "<i8", ">f4", "<f8", "f2"])
ARRAYS = hnp.arrays(NUMBERS, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))


def write(path, pickled):
    """An npz file whose object array `data` is the given pickle."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|O", "fortran_order": False, "shape": ()}
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.npy", header.getvalue() + pickled)


def wrap(content):
    array = np.empty((), dtype=object)
    array[()] = content
    return array


def load(path):
    return load_arrays(path, entry="data", names=("x", "y"))


@given(ARRAYS, st.integers(2, 5), st.randoms())
@settings(max_examples=25, deadline=None)
def test_arrays_of_numbers_come_back_from_every_protocol_and_order(array, protocol, random):
    array = array.transpose(random.sample(range(array.ndim), array.ndim))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "0.npz"
        content = {"x": array, "y": np.arange(3), "note": "ignored"}
        write(path, pickle.dumps(wrap(content), protocol=protocol))
        x, y = load(path)
    assert x.dtype == array.dtype
    np.testing.assert_array_equal(x, array)
    np.testing.assert_array_equal(y, np.arange(3))


def test_what_numpy_writes_today_and_wrote_before_version_2_is_read(tmp_path):
    content = wrap({"x": np.ones((2, 3), np.float32), "y": np.float64(3)})
    np.savez_compressed(tmp_path / "new.npz", data=content)
    old = pickle.dumps(content, protocol=3).replace(b"numpy._core.", b"numpy.core.")
    write(tmp_path / "old.npz", old)
    for name in ("new.npz", "old.npz"):
        x, y = load(tmp_path / name)
        assert x.tolist() == [[1, 1, 1], [1, 1, 1]]
        assert y == 3


class Attack:
    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("place", ["whole", "array", "dict", "value", "element"])
@pytest.mark.parametrize(("function", "name"), [(os.mkdir, "mkdir"), (eval, "eval")])
def test_pickled_code_is_refused_by_name_and_never_runs(tmp_path, function, name, place, protocol):
    mark = tmp_path / "was-run"
    argument = str(mark) if function is os.mkdir else f"__import__('os').mkdir({str(mark)!r})"
    attack = Attack(function, argument)
    content = {
        "whole": attack,
        "array": wrap(attack),
        "dict": wrap({"x": np.ones(1), "y": np.ones(1), "z": attack}),
        "value": wrap({"x": attack, "y": np.ones(1)}),
        "element": wrap({"x": np.array([attack, 1], dtype=object), "y": np.ones(1)}),
    }[place]
    pickled = pickle.dumps(content, protocol=protocol)
    write(tmp_path / "0.npz", pickled)
    with pytest.raises(
        ValueError, match=rf"0\.npz cannot be read: refers to \w+\.{name}"
    ) as caught:
        load(tmp_path / "0.npz")
    assert caught.value.__suppress_context__
    assert not mark.exists()
    pickle.loads(pickled)
    assert mark.exists(), "the attack would not have worked anyway"


@pytest.mark.parametrize(
    "pickled",
    [
        pytest.param(b"\x80\x04\x8c\x05numpy\x8c\x0ef2py.os.system\x93.", id="a dotted name"),
        pytest.param(b"cnumpy\nload\n.", id="another function of NumPy"),
        pytest.param(
            b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00utf-8tR.", id="a codec"
        ),
        pytest.param(b"Pname\n.", id="a persistent id"),
        pytest.param(b"cnumpy\nndarray\n)R.", id="a call of what is no function"),
        pytest.param(b"cnumpy\ndtype\n(dX\x01\x00\x00\x00aK\x01stb.", id="state for a stand-in"),
        pytest.param(b"}.", id="a plain dict without the keys"),
        pytest.param(b"K\x01.", id="a number"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_other_crafted_pickles_are_refused(tmp_path, pickled):
    write(tmp_path / "0.npz", pickled)
    with pytest.raises(ValueError, match=r"0\.npz cannot be read: "):
        load(tmp_path / "0.npz")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x": np.ones(1)}, r"holds \['x'\], expected a dict with \['x', 'y'\]"),
        ([1, 2], "holds list, expected a dict"),
        ({"x": [1.0], "y": np.ones(1)}, "x is a list, expected an array"),
        ({"x": np.array([{}], dtype=object), "y": np.ones(1)}, "type O8, only numbers"),
        ({"x": np.array(["a"]), "y": np.ones(1)}, "type U1, only numbers"),
        ({"x": np.zeros(1, "M8[s]"), "y": np.ones(1)}, "type M8, only numbers"),
        ({"x": np.zeros(1, [("a", "f4")]), "y": np.ones(1)}, "type V4, only numbers"),
    ],
)
def test_anything_but_arrays_of_numbers_is_refused(tmp_path, content, message):
    write(tmp_path / "0.npz", pickle.dumps(wrap(content)))
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "0.npz")


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_a_cut_pickle_is_always_a_value_error(data):
    pickled = pickle.dumps(wrap({"x": np.ones((2, 2)), "y": np.ones(2)}), protocol=4)
    end = data.draw(st.integers(0, len(pickled) - 1))
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "0.npz", pickled[:end])
        with pytest.raises(ValueError, match=r"0\.npz cannot be read"):
            load(Path(folder) / "0.npz")


def test_plain_arrays_and_files_that_are_no_npz_are_refused(tmp_path):
    np.savez(tmp_path / "plain.npz", data=np.ones(3))
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    (tmp_path / "text.npz").write_text("text")
    for name, message in {
        "plain.npz": r"data is float64 \[3\], expected one pickled dict",
        "other.npz": "data.npy",
        "text.npz": "not a zip file",
        "missing.npz": "No such file",
    }.items():
        with pytest.raises(ValueError, match=message):
            load(tmp_path / name)


def member():
    """What lies in an npz file, written by NumPy."""
    stream = io.BytesIO()
    np.save(stream, wrap({"x": np.ones((2, 2)), "y": np.ones(2)}), allow_pickle=True)
    return stream.getvalue()


MEMBER = member()
PLACES = st.integers(0, len(MEMBER) - 1)


@given(st.lists(st.tuples(PLACES, st.binary(max_size=3)), min_size=1, max_size=4))
@example([(70, b"(")])  # of which NumPy's parser of headers says a TokenError
@settings(max_examples=40, deadline=None)
def test_bytes_that_changed_are_numbers_or_a_value_error(changes):
    content = bytearray(MEMBER)
    for place, new in changes:
        content[place : place + len(new) + 1] = new + b"("[: place % 2]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "0.npz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("data.npy", content)
        try:
            arrays = load(path)
        except ValueError as error:
            assert "0.npz cannot be read" in str(error)
        else:
            assert all(array.dtype.kind in "iuf" for array in arrays)


# Tuple 60 holds tuple 59 twice, which holds tuple 58 twice, ...: 2^60 steps for a hash or a text.
BOMB = b"h\x3c"
NEST = b"\x80\x04)\x94" + b"".join(b"h%ch%c\x86\x94" % (k, k) for k in range(60)) + b"0" * 61
ARRAY = (
    b"}(X\x01\x00\x00\x00xcnumpy._core.numeric\n_frombuffer\n(C\x08aaaaaaaa%sK\x01\x85"
    b"X\x01\x00\x00\x00CtRqZX\x01\x00\x00\x00yhZu."
)
DTYPE = b"cnumpy\ndtype\n%s\x85R"
BOMBS = {
    "a key": b"}%sK\x01s." % BOMB,
    "keys": b"}(%sK\x01u." % BOMB,
    "a key in a list of items": b"(%sK\x01d." % BOMB,
    "a set": b"\x8f(%s\x90." % BOMB,
    "a frozen set": b"(%s\x91." % BOMB,
    "the whole": BOMB + b".",
    "the name of a type": ARRAY % (DTYPE % BOMB),
    "no type": ARRAY % BOMB,
    "a shape": (ARRAY % (DTYPE % b"X\x02\x00\x00\x00f8")).replace(b"K\x01\x85", BOMB, 1),
    "an order of bytes": ARRAY % (DTYPE % b"X\x02\x00\x00\x00f8" + b"(K\x03%stb" % BOMB),
    "an encoding": b"c_codecs\nencode\nX\x01\x00\x00\x00a%s\x86R." % BOMB,
    "ten million steps": b"N0" * 5_000_000 + b".",
    "the state of a function": b"c_codecs\nencode\n%sb." % BOMB,
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("bomb", BOMBS)
def test_no_pickle_of_a_few_bytes_takes_long(bomb, tmp_path):
    write(tmp_path / "0.npz", NEST + BOMBS[bomb])
    with pytest.raises(ValueError, match=r"0\.npz cannot be read: ") as error:
        load(tmp_path / "0.npz")
    assert len(str(error.value)) < 400


@pytest.mark.timeout(20)
@given(st.binary(max_size=60))
@settings(max_examples=40, deadline=None)
def test_whatever_follows_a_nest_of_tuples_ends_soon(rest):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "0.npz"
        write(path, NEST + BOMB + rest + b".")
        with pytest.raises(ValueError, match="cannot be read"):
            load(path)
