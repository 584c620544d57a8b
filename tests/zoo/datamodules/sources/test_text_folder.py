import numpy as np
import pytest

from flfast.datamodules.sources.text_tokens import make_tokenizer, token_texts
from flfast.zoo.datamodules.sources.text_folder import _read, text_folder

ROWS = (
    '"3","Wall St. Bears","Reuters - Short-sellers\\are ""seeing"" green"',
    '"4","Chips","A new chip\\nis out"',
    '"3","Oil","Oil is out"',
)
SETTINGS = {
    "tokenizer": "words",
    "vocabulary_size": 100,
    "max_tokens": 16,
    "test_fraction": 0.0,
    "seed": 0,
}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "train.csv").write_text("\n".join(ROWS) + "\n", encoding="utf-8")
    return tmp_path


def text_of(examples, row):
    return "".join(examples.vocabulary[token] for token in examples.inputs[row] if token)


@pytest.mark.parametrize("tokenizer", ["words", "bpe"])
def test_tokens_read_as_the_text(root, tokenizer):
    settings = SETTINGS | {"tokenizer": tokenizer, "vocabulary_size": 400, "max_tokens": 60}
    examples = text_folder(root=str(root), **settings)
    expected = {
        "words": " chips a new chip is out",
        "bpe": "Chips A new chip is out",
    }
    assert text_of(examples, 1) == expected[tokenizer]
    assert examples.targets.tolist() == [2, 3, 2]
    assert examples.num_classes == 4
    assert examples.is_test is None


def test_the_test_file_is_the_test_set_and_trains_no_tokenizer(root):
    (root / "test.csv").write_text('Class Index,Title,Description\n1,Oil,"unseen, new"\n')
    examples = text_folder(root=str(root), **SETTINGS)
    assert examples.is_test.tolist() == [False, False, False, True]
    assert examples.targets[3] == 0
    assert text_of(examples, 3) == " oil <unk> <unk> new"


def test_without_a_test_file_a_share_of_every_class_is_held_out(tmp_path):
    rows = [f'"{number % 2 + 1}","t","word{number}"' for number in range(20)]
    (tmp_path / "train.csv").write_text("\n".join(rows))
    examples = text_folder(root=str(tmp_path), **SETTINGS | {"test_fraction": 0.2})
    assert np.bincount(examples.targets[examples.is_test]).tolist() == [2, 2]
    assert not {text_of(examples, row) for row in np.flatnonzero(examples.is_test)} - {" t <unk>"}


@pytest.mark.parametrize("tokenizer", ["words", "bpe"])
def test_a_saved_tokenizer_gives_the_same_tokens_and_training_repeats(root, tokenizer):
    settings = SETTINGS | {"tokenizer": tokenizer, "vocabulary_size": 300}
    examples = text_folder(root=str(root), **settings)
    _, texts = _read(root / "train.csv")
    first, again = (
        make_tokenizer(tokenizer, texts=texts, vocabulary_size=300).to_str() for _ in range(2)
    )
    assert first == again
    saved = root / "tokenizer.json"
    saved.write_text(first)
    loaded = text_folder(root=str(root), **SETTINGS | {"tokenizer": str(saved)})
    assert np.array_equal(loaded.inputs, examples.inputs)
    assert loaded.vocabulary == examples.vocabulary


def test_a_tokenizer_whose_first_token_is_no_padding_is_refused(root):
    from tokenizers import Tokenizer, models

    path = root / "tokenizer.json"
    Tokenizer(models.WordLevel({"!": 0, "<unk>": 1}, unk_token="<unk>")).save(str(path))
    with pytest.raises(
        ValueError, match=r"data.tokenizer: token 0 is '!', but it must be padding"
    ):
        text_folder(root=str(root), **SETTINGS | {"tokenizer": str(path)})


def test_what_is_no_tokenizer_is_refused(root):
    (root / "broken.json").write_text("{}")
    for name in ("broken.json", "missing.json"):
        with pytest.raises(ValueError, match="not a readable tokenizer"):
            text_folder(root=str(root), **SETTINGS | {"tokenizer": str(root / name)})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('"3","a"\n"x","b"', r"row 2 is \['x', 'b'\]; expected rows without a header"),
        ('"0","a"', r"row 1 is \['0', 'a'\]"),
        ('"3"', r"row 1 is \['3'\]"),
        ('"Class","Text"', "has no rows"),
        ("", "has no rows"),
        (b"1,\xff", "cannot be read"),
    ],
)
def test_files_of_another_form_are_refused(tmp_path, content, message):
    path = tmp_path / "train.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as caught:
        text_folder(root=str(tmp_path), **SETTINGS)
    assert "train.csv" in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"data.root=.* has no train.csv"):
        text_folder(root=str(tmp_path), **SETTINGS)


def test_the_text_of_a_token_is_its_part_of_a_text():
    made = make_tokenizer("bpe", texts=["to be or not to be"] * 3, vocabulary_size=300)
    texts = token_texts(made)
    tokens = made.encode("not to be, é?").ids
    assert "".join(texts[token] for token in tokens[:3]) in "not to be"


def test_quotes_that_do_not_pair_up_are_refused(tmp_path):
    (tmp_path / "train.csv").write_text('1,"a\n2,"b\n')
    with pytest.raises(ValueError, match=r"train.csv cannot be read: line 1: .*quote"):
        _read(tmp_path / "train.csv")
