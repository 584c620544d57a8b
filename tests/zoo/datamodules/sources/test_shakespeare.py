from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flfast.tasks.task_type import IGNORED
from flfast.zoo.datamodules.sources.shakespeare import Shakespeare, split_by_time

REAL = Path(__file__).parents[5] / "shared" / "data"
PLAY = """ROMEO:
But soft! what light
through yonder window breaks?

JULIET:
Ay me!

ROMEO:
She speaks.


NURSE:
"""
SETTINGS = {
    "tokenizer": "characters",
    "vocabulary_size": 100,
    "sequence_length": 8,
    "min_characters": 1,
    "test_share": 0.0,
    "speakers": "all",
}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "tinyshakespeare.txt").write_text(PLAY)
    return tmp_path


def text_of(examples, rows):
    """The first character of every window's text and all targets."""
    targets = examples.targets[rows]
    first = examples.inputs[rows][0, :1].tolist()
    tokens = first + targets[targets != IGNORED].tolist()
    return "".join(examples.vocabulary[token] for token in tokens)


def test_a_client_has_all_speeches_of_its_speaker_in_order(root):
    examples = Shakespeare(root=str(root), **SETTINGS).load()
    assert text_of(examples, examples.owner == 0) == (
        "But soft! what light\nthrough yonder window breaks?\nShe speaks."
    )
    assert text_of(examples, examples.owner == 1) == "Ay me!"
    assert examples.owner.max() == 1  # the nurse says nothing
    assert examples.vocabulary == tuple(sorted(set(PLAY)))
    assert examples.num_classes == len(examples.vocabulary)


def test_the_end_of_each_text_is_for_testing(root):
    examples = Shakespeare(root=str(root), **SETTINGS | {"test_share": 0.2}).load()
    own = examples.owner == 0
    assert text_of(examples, own & examples.is_test) == "\nShe speaks."
    assert text_of(examples, own & ~examples.is_test).endswith("window breaks?")
    assert not examples.is_test[examples.owner == 1].any()  # too short for a test


@pytest.mark.parametrize("tokenizer", ["characters", "words"])
def test_even_and_odd_speakers_are_halves_with_one_vocabulary(root, tokenizer):
    settings = SETTINGS | {"tokenizer": tokenizer}
    whole = Shakespeare(root=str(root), **settings).load()
    halves = [
        Shakespeare(root=str(root), **settings | {"speakers": name}).load()
        for name in ("even", "odd")
    ]
    for place, half in enumerate(halves):
        assert half.vocabulary == whole.vocabulary
        mine = np.flatnonzero(whole.owner % 2 == place)
        assert np.array_equal(half.inputs, whole.inputs[mine])
        assert np.array_equal(half.owner, whole.owner[mine] // 2)


def test_speakers_with_little_text_are_left_out(root):
    examples = Shakespeare(root=str(root), **SETTINGS | {"min_characters": 7}).load()
    assert examples.owner.max() == 0
    with pytest.raises(
        ValueError, match=r"min_characters=99 and .* leave none of the 3 speakers .*62"
    ):
        Shakespeare(root=str(root), **SETTINGS | {"min_characters": 99}).load()


def test_words_are_those_of_the_training_texts(root):
    examples = Shakespeare(
        root=str(root), **SETTINGS | {"tokenizer": "words", "test_share": 0.2}
    ).load()
    own = examples.owner == 0
    assert text_of(examples, own & ~examples.is_test) == (
        " but soft ! what light through yonder window breaks ?"
    )
    assert text_of(examples, own & examples.is_test) == " <unk> <unk> <unk>"
    assert text_of(examples, examples.owner == 1) == " ay me !"
    assert examples.owner.max() == 1
    assert examples.num_classes == 2 + 12 == len(examples.vocabulary)


def test_rare_words_are_unknown(root):
    words = SETTINGS | {"tokenizer": "words", "vocabulary_size": 3}
    examples = Shakespeare(root=str(root), **words).load()
    assert examples.vocabulary == ("", " <unk>", " !")
    assert text_of(examples, examples.owner == 1) == " <unk> <unk> !"


def test_a_speaker_needs_two_words(tmp_path):
    (tmp_path / "tinyshakespeare.txt").write_text("A:\nAlas\n\nB:\n--- -\n")
    with pytest.raises(
        ValueError, match=r"tokenizer=words leave none of the 2 speakers .* texts of 2 tokens"
    ):
        Shakespeare(root=str(tmp_path), **SETTINGS | {"tokenizer": "words"}).load()


def test_the_root_may_be_the_file_with_windows_line_breaks(root, tmp_path):
    path = tmp_path / "play.txt"
    path.write_bytes(PLAY.replace("\n", "\r\n").encode())
    examples = Shakespeare(root=str(path), **SETTINGS).load()
    assert np.array_equal(examples.inputs, Shakespeare(root=str(root), **SETTINGS).load().inputs)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Once upon a time\n", r"line 1 is 'Once upon a time'; expected SPEAKER:"),
        (b"ROMEO:\nAy\n\nand then\n", r"line 4 is 'and then'; expected SPEAKER:"),
        (b"\xff\xfe\x00", "is not a readable UTF-8 text"),
        (b"", "leave none of the 0 speakers"),
    ],
)
def test_other_texts_are_refused(tmp_path, content, message):
    (tmp_path / "tinyshakespeare.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        Shakespeare(root=str(tmp_path), **SETTINGS).load()
    assert "data." in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"data.root=.* a folder with tinyshakespeare.txt"):
        Shakespeare(root=str(tmp_path), **SETTINGS).load()


@pytest.mark.skipif(
    not (REAL / "tinyshakespeare.txt").is_file(), reason="the file is not on this machine"
)
def test_the_real_file_loads_whole():
    lengths = {"sequence_length": 80, "min_characters": 160, "test_share": 0.2}
    examples = Shakespeare(root=str(REAL), **SETTINGS | lengths).load()
    assert examples.inputs.shape[1:] == (80,)
    assert examples.num_classes == 65
    assert len(np.unique(examples.owner)) == 232
    share = (examples.targets != IGNORED).sum(1).numpy() @ examples.is_test
    assert share / (examples.targets != IGNORED).sum() == pytest.approx(0.2, abs=0.002)


@given(st.lists(st.integers(1, 9), min_size=2, max_size=60).map(np.array), st.floats(0, 0.99))
def test_texts_are_split_in_order_into_parts_that_have_something_to_predict(tokens, share):
    train, test = split_by_time(tokens, share)
    assert [*train, *test] == tokens.tolist()
    assert len(train) >= 2
    assert len(test) != 1
    if share * len(tokens) >= 3 and len(tokens) - share * len(tokens) >= 3:
        assert abs(len(test) - share * len(tokens)) <= 0.5 + 1e-9
    if not share:
        assert not len(test)
