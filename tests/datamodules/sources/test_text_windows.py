import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flfast.datamodules.sources.text_tokens import (
    PADDING,
    Text,
    language_examples,
    next_token_windows,
)
from flfast.tasks.task_type import IGNORED

TOKENS = st.lists(st.integers(1, 9), min_size=2, max_size=60).map(np.array)


@given(TOKENS, st.integers(1, 12))
def test_every_token_but_the_first_is_a_target_once_behind_the_token_before_it(tokens, length):
    inputs, targets = next_token_windows(tokens, length)
    assert inputs.shape == targets.shape == (-(-(len(tokens) - 1) // length), length)
    counted = targets != IGNORED
    assert targets[counted].tolist() == tokens[1:].tolist()
    assert inputs[counted].tolist() == tokens[:-1].tolist()
    assert (inputs[~counted] == PADDING).all()
    assert counted.any(axis=1).all()


def test_a_text_without_a_next_token_has_no_windows():
    for tokens in ([], [3]):
        inputs, targets = next_token_windows(np.array(tokens, dtype=np.int64), 4)
        assert inputs.shape == targets.shape == (0, 4)


def test_examples_know_their_client_and_part():
    texts = [
        Text(np.arange(5), 0, is_test=False),
        Text(np.arange(3), 0, is_test=True),
        Text(np.arange(4), 1, is_test=False),
    ]
    examples = language_examples(texts, length=2, vocabulary=tuple("abcde"))
    assert examples.task == "language"
    assert examples.owner.tolist() == [0, 0, 0, 1, 1]
    assert examples.is_test.tolist() == [False, False, True, False, False]
    assert examples.inputs[3:].tolist() == [[0, 1], [2, PADDING]]
    assert examples.targets[3:].tolist() == [[1, 2], [3, IGNORED]]
    unowned = language_examples(texts[::2], length=2, vocabulary=tuple("abcde"), owned=False)
    assert unowned.owner is None
    assert unowned.is_test is None
