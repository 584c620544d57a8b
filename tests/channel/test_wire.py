import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flfast.channel.sent import Sent
from flfast.channel.wire import MalformedError, Message, message_of, pack, sent_of, unpack
from flfast.state.stack import structure
from flfast.state.tree import leaves

NAMES = st.text(min_size=1, max_size=5)
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool)


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    number = draw(st.integers(0, 200))
    leaf = torch.full(shape, number).to(dtype)
    form = draw(st.sampled_from(("plain", "meta", "transposed", "shared")))
    if form == "meta":
        return leaf.to("meta")
    if form == "transposed":
        return leaf.permute([*reversed(range(leaf.ndim))])
    return leaf.expand(2, *leaf.shape) if form == "shared" else leaf


TREES = st.recursive(
    st.dictionaries(NAMES, tensors(), max_size=3),
    lambda inner: st.dictionaries(NAMES, st.one_of(tensors(), inner), max_size=3),
    max_leaves=6,
)
NUMBERS = st.one_of(st.integers(), st.floats(), st.booleans())
FACTS = st.dictionaries(NAMES, st.one_of(NUMBERS, NAMES), max_size=4)


@given(facts=FACTS, trees=st.dictionaries(NAMES, TREES, max_size=2))
@settings(max_examples=25)
def test_what_is_packed_arrives(facts, trees):
    found = unpack(pack(Message(facts, trees)))
    assert json.dumps(found.facts) == json.dumps(facts)  # NaN, too
    assert structure(found.trees) == structure(trees)
    for own, other in zip(leaves(found.trees), leaves(trees), strict=True):
        assert own.is_meta == other.is_meta
        assert own.is_meta or torch.equal(own, other)


SENT = Sent({"params": {"w": torch.ones(3)}, "num": torch.tensor(2)}, b"abc", 2.5, 3, 4, 5, 0.5)


def test_what_is_sent_arrives():
    found = sent_of(unpack(pack(message_of(SENT))))
    assert found._replace(upload={}) == SENT._replace(upload={})
    assert found.num_bytes == SENT.num_bytes


@given(
    places=st.lists(st.integers(0, 10**6), min_size=1, max_size=8),
    values=st.lists(st.integers(0, 255), min_size=8, max_size=8),
    end=st.integers(0, 10**6),
)
@settings(max_examples=80)
def test_damaged_bytes_are_refused_or_a_message(places, values, end):
    data = bytearray(pack(message_of(SENT)))
    for place, value in zip(places, values, strict=False):
        data[place % len(data)] = value
    if end % 3 == 0:
        del data[end % len(data) :]
    try:
        found = sent_of(unpack(bytes(data)))
    except MalformedError as error:
        assert str(error)
    else:
        assert found.weight >= 0
        assert found.num_steps >= 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("weight", value) for value in (-1, "1", None, float("inf"), True)),
        *(("num_examples", value) for value in (-1, 1.5, 2**60, "1")),
        ("is_finite", 1),
        ("loss_sum", float("nan")),
        ("more", 1),
    ],
)
def test_facts_out_of_range_are_named(name, value):
    facts, trees = message_of(SENT)
    with pytest.raises(MalformedError, match=name):
        sent_of(Message({**facts, name: value}, trees))
