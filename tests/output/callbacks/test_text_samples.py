"""`samples.txt`: text from the server's weights, a function of weights and seed."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flfast.datamodules.sources.text_tokens import Text, language_examples
from flfast.output.callbacks.text_samples import TextSamples, encode, sample_tokens
from flfast.state.randomness import torch_generator

LETTERS = tuple("abcdefgh")
OPTIONS = {"prompt": None, "num_samples": 2, "num_tokens": 6, "temperature": 1.0}


class NextLetter(nn.Module):
    """Logits that say: the letter `step` places further on."""

    def __init__(self, step):
        super().__init__()
        table = torch.full((8, 8), -50.0)
        table[torch.arange(8), (torch.arange(8) + step) % 8] = 50.0
        self.table = nn.Parameter(table)
        self.dropout = nn.Dropout(0.9)

    def forward(self, tokens):
        assert tokens.shape[1] == 4, "the model is called with the window of training"
        return self.dropout(self.table[tokens])


@pytest.fixture
def federation(tmp_path):
    texts = [Text(np.arange(8), 0, is_test=False), Text(np.arange(8), 0, is_test=True)]
    examples = language_examples(texts, length=4, vocabulary=LETTERS)
    return SimpleNamespace(
        run_dir=tmp_path,
        seed=0,
        history=[{"round": 7}],
        algorithm=SimpleNamespace(evaluate_server=True),
        engine=SimpleNamespace(site=SimpleNamespace(model=NextLetter(step=1).train())),
        data=SimpleNamespace(examples=examples, central_test=np.flatnonzero(examples.is_test)),
        weights=lambda: NextLetter(step=2).state_dict(),
    )


def written(federation, **options):
    callback = TextSamples(**OPTIONS | options)
    callback.check(federation.data.examples)
    callback.on_run_end(federation)
    path = federation.run_dir / "samples.txt"
    return path.read_text() if path.exists() else None


def test_the_servers_weights_go_on_with_examples_of_the_test_set(federation):
    text = written(federation)
    assert text.startswith("Text from the server's model after round 7, temperature 1.")
    assert "\n--- 1 ---\nab|dfhbdf\n" in text
    assert "\n--- 2 ---\nef|hbdfhb\n" in text
    assert federation.engine.site.model.training
    assert federation.engine.site.model.table[0].argmax() == 1


def test_the_weights_and_the_seed_determine_the_text(federation):
    hot = {"temperature": 40.0, "num_tokens": 40, "prompt": "head"}
    first, again = written(federation, **hot), written(federation, **hot)
    federation.seed = 1
    assert first == again != written(federation, **hot)
    assert first.count("head|") == 2


@pytest.mark.parametrize("prompt", ["", "abz"])
def test_a_prompt_that_is_no_text_of_the_data_is_refused(federation, prompt):
    with pytest.raises(ValueError, match=r"callbacks.text_samples.prompt.*allowed: text"):
        TextSamples(**OPTIONS | {"prompt": prompt}).check(federation.data.examples)


def test_nothing_is_written_without_text_or_without_a_server_model(federation):
    federation.algorithm.evaluate_server = False
    assert written(federation) is None
    federation.algorithm.evaluate_server = True
    federation.data.examples = SimpleNamespace(task="classification", vocabulary=LETTERS)
    assert written(federation, prompt="no such letters") is None


def test_tokens_are_drawn_with_the_models_probabilities():
    chances = torch.tensor([0.5, 0.3, 0.2])
    for temperature in (1.0, 2.0):
        found = sample_tokens(
            lambda tokens: chances.log().expand(*tokens.shape, 3),
            torch.zeros(20_000, 1, dtype=torch.int64),
            num_tokens=1,
            window=3,
            temperature=temperature,
            rng=torch_generator(0, "test"),
        )
        expected = chances ** (1 / temperature)
        shares = torch.bincount(found[:, 1], minlength=3) / 20_000
        torch.testing.assert_close(shares, expected / expected.sum(), atol=0.015, rtol=0)


@pytest.mark.parametrize("logit", [float("nan"), float("inf"), 1e308])
def test_a_diverged_model_has_samples(logit):
    found = sample_tokens(
        lambda tokens: torch.full((*tokens.shape, 3), logit, dtype=torch.float64),
        torch.zeros(2, 1, dtype=torch.int64),
        num_tokens=2,
        window=3,
        temperature=0.5,
        rng=torch_generator(0, "test"),
    )
    assert found.shape == (2, 3)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 9))
def test_the_model_sees_the_last_tokens_and_is_read_at_the_last_one(window, prompt, num_tokens):
    seen = []

    def counting(tokens):
        seen.append(tokens.clone())
        return nn.functional.one_hot(tokens + 1, 30).double() * 1e4

    texts = sample_tokens(
        counting,
        torch.arange(prompt)[None],
        num_tokens=num_tokens,
        window=window,
        temperature=1.0,
        rng=torch_generator(0, "test"),
    )
    assert texts.tolist() == [[*range(prompt + num_tokens)]]
    assert all(tokens.shape == (1, window) for tokens in seen)


@given(st.text("abc", min_size=1, max_size=20))
def test_encoded_text_reads_as_before_and_takes_the_longest_tokens(text):
    vocabulary = ("", "a", "b", "c", "ab", "abc")
    tokens = encode(text, vocabulary)
    assert "".join(vocabulary[token] for token in tokens) == text
    assert tokens.count(5) == text.count("abc")


@pytest.mark.slow
def test_a_run_on_plays_trains_speakers_and_ends_with_text(tmp_path, flfast_run, capsys):
    speeches = ["ROMEO:\nabababababababababababab", "JULIET:\nbabababababababababababa"]
    path = tmp_path / "plays.txt"
    path.write_text("\n\n".join(speeches * 8), encoding="utf-8")
    words = (
        *("data=shakespeare", f"data.root={path}", "data.sequence_length=16", "model=lstm"),
        *("model.hidden=8", "model.layers=1", "rounds=3", "optimizer.lr=0.05", "callbacks=none"),
        "+callbacks.text_samples._target_=flfast.output.callbacks.text_samples.TextSamples",
        *("+callbacks.text_samples.num_samples=1", "+callbacks.text_samples.num_tokens=12"),
        "+callbacks.text_samples.temperature=0.1",
    )
    folder = flfast_run(*words, "+callbacks.text_samples.prompt=ababab")
    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert float(rows[-1]["global/loss"]) < np.log(2) < float(rows[0]["global/loss"])
    assert "ababab|abab" in (folder / "samples.txt").read_text()
    with pytest.raises(SystemExit):
        flfast_run(*words, "+callbacks.text_samples.prompt=xyz", run_dir="other")
    assert "prompt='xyz': no token of the vocabulary begins 'xyz'" in capsys.readouterr().err
