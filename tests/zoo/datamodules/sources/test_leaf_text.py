import json

import pytest

from flfast.tasks.task_type import IGNORED
from flfast.zoo.datamodules.sources.leaf_text import (
    ALPHABET,
    leaf_reddit,
    leaf_sent140,
    leaf_shakespeare,
)

WORDS = {"vocabulary": None, "vocabulary_size": 100}


def write(root, part, **users):
    """A file as LEAF's `data_to_json` writes it."""
    (root / part).mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(user["y"]) for user in users.values()],
        "user_data": users,
    }
    (root / part / f"all_data_niid_{part}_8.json").write_text(json.dumps(content))


def comment(words, length=4, **more):
    """A comment as LEAF's Reddit has it: windows of inputs, and windows of targets."""

    def windows(tokens):
        padded = tokens + ["<PAD>"] * (-len(tokens) % length)
        return [padded[i : i + length] for i in range(0, len(padded), length)]

    inputs, targets = ["<BOS>", *words, "<EOS>"], [*words, "<EOS>", "<PAD>"]
    return windows(inputs), {"target_tokens": windows(targets), "created_utc": "1", **more}


def test_shakespeare_predicts_only_the_character_behind_the_window(tmp_path):
    lines = ["To be, or not to be", "Whether 'tis nobler"]
    write(tmp_path, "train", HAMLET={"x": lines, "y": [":", " "]})
    write(
        tmp_path, "test", HAMLET={"x": lines[:1], "y": ["!"]}, GHOST={"x": lines[:1], "y": ["."]}
    )
    examples = leaf_shakespeare(root=str(tmp_path))
    assert "".join(ALPHABET[token] for token in examples.inputs[1]) == lines[1]
    assert (examples.targets[:, :-1] == IGNORED).all()
    assert [ALPHABET[token] for token in examples.targets[:, -1]] == [":", " ", "!", "."]
    assert examples.owner.tolist() == [0, 0, 0, -1]
    assert examples.client_names == ("HAMLET",)
    assert examples.is_test.tolist() == [False, False, True, True]
    assert (examples.task, examples.num_classes) == ("language", 80)
    assert examples.input_shape == (len(lines[0]),)


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ({"x": ["ab", "abc"], "y": ["a", "b"]}, "texts of equal length"),
        ({"x": [[1, 2]], "y": ["a"]}, "texts of equal length"),
        ({"x": ["ab"], "y": [1]}, "y: characters"),
        ({"x": ["ab"], "y": ["é"]}, "'é', which is none of LEAF's 80"),
    ],
)
def test_shakespeare_of_another_form_is_refused(tmp_path, user, message):
    write(tmp_path, "train", HAMLET=user)
    with pytest.raises(ValueError, match=message) as caught:
        leaf_shakespeare(root=str(tmp_path))
    assert "HAMLET" in str(caught.value)


def tweet(text):
    return ["1467", "Mon Apr 06", "NO_QUERY", "someone", text, "training"]


def test_sent140_numbers_words_of_the_training_tweets_by_frequency(tmp_path):
    write(tmp_path, "train", b={"x": [tweet("so sad!"), tweet("so happy")], "y": [0, 1]})
    write(tmp_path, "test", b={"x": [tweet("so odd , sad")], "y": [0]})
    examples = leaf_sent140(root=str(tmp_path), max_tokens=3, **WORDS)
    assert examples.vocabulary == ("", " <unk>", " so", " !", " happy", " sad")
    assert examples.inputs.tolist() == [[2, 5, 3], [2, 4, 0], [2, 1, 1]]
    assert examples.targets.tolist() == [0, 1, 0]
    assert (examples.task, examples.num_classes) == ("classification", 2)


@pytest.mark.parametrize("content", [["sad", "so"], {"vocab": ["sad", "so"], "emba": [[0.1]]}])
def test_the_words_may_come_from_a_file(tmp_path, content):
    write(tmp_path, "train", b={"x": [tweet("so sad!")], "y": [0]})
    path = tmp_path / "embs.json"
    path.write_text(json.dumps(content))
    examples = leaf_sent140(
        root=str(tmp_path), vocabulary=str(path), vocabulary_size=1, max_tokens=4
    )
    assert examples.inputs.tolist() == [[3, 2, 1, 0]]


@pytest.mark.parametrize("text", ["{", '{"words": []}', "[1]"])
def test_a_file_without_words_is_refused(tmp_path, text):
    write(tmp_path, "train", b={"x": [tweet("so sad!")], "y": [0]})
    path = tmp_path / "words.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"data.vocabulary=.*words.json"):
        leaf_sent140(root=str(tmp_path), vocabulary=str(path), vocabulary_size=1, max_tokens=4)


@pytest.mark.parametrize(
    ("user", "message"),
    [
        ({"x": ["so sad"], "y": [0]}, r"x: \[id, date, query, user, text\]"),
        ({"x": [tweet("so sad")[:4]], "y": [0]}, r"x: \[id, date, query, user, text\]"),
        ({"x": [tweet("so sad")], "y": ["bad"]}, "y: 0 or 1"),
        ({"x": [tweet("so sad")], "y": [4]}, r"\[0, 2\)"),
    ],
)
def test_sent140_of_another_form_is_refused(tmp_path, user, message):
    write(tmp_path, "train", b=user)
    with pytest.raises(ValueError, match=message):
        leaf_sent140(root=str(tmp_path), max_tokens=4, **WORDS)


def test_reddit_predicts_every_word_but_padding(tmp_path):
    first, second = comment(["hi", "all"]), comment(["hi", "hi", "you"])
    write(tmp_path, "train", a={"x": [first[0], second[0]], "y": [first[1], second[1]]})
    examples = leaf_reddit(root=str(tmp_path), **WORDS)
    texts = examples.vocabulary
    assert texts[:2] == ("", " <unk>")
    assert texts[2:5] == (" hi", " <BOS>", " <EOS>")
    words = [" ".join(texts[token].strip() for token in row) for row in examples.inputs]
    # The second window of the second comment has nothing to predict but padding.
    assert words == ["<BOS> hi all <EOS>", "<BOS> hi hi you"]
    assert examples.targets[0].tolist() == [*examples.inputs[0, 1:].tolist(), IGNORED]
    assert texts[examples.targets[1, -1]] == " <EOS>"
    assert examples.task == "language"


def test_a_word_that_no_training_text_has_is_unknown(tmp_path):
    write(tmp_path, "train", a=dict(zip("xy", ([i] for i in comment(["hi"])), strict=True)))
    write(tmp_path, "test", a=dict(zip("xy", ([i] for i in comment(["yo"])), strict=True)))
    examples = leaf_reddit(root=str(tmp_path), **WORDS)
    assert examples.inputs[1, 1] == examples.targets[1, 0] == 1


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([["a", "b"]], {"target_tokens": [["b"]]}, "windows of words"),
        ([["a", "b"]], {"target_tokens": []}, "windows of words"),
        ([["a", "b"]], "a", "windows of words"),
        (["ab"], {"target_tokens": ["bc"]}, "windows of words"),
        ([["a"], ["b", "c"]], {"target_tokens": [["a"], ["b", "c"]]}, "windows of equal length"),
        ([["a"]], {"target_tokens": [["<PAD>"]]}, "no example with something to predict"),
    ],
)
def test_reddit_of_another_form_is_refused(tmp_path, x, y, message):
    write(tmp_path, "train", a={"x": [x], "y": [y]})
    with pytest.raises(ValueError, match=message):
        leaf_reddit(root=str(tmp_path), **WORDS)
