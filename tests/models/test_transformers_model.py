import sys

import pytest
import torch
from models_by_name import NUM_TOKENS, REQUIRED, make_inputs, make_model

from flfast.tasks.factored_logits import FactoredLogits

GPT2 = REQUIRED["transformers"]
SIZES = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}
BERT = {"name": "bert", "options": SIZES}


def make(task="language", **options):
    return make_model("transformers", task=task, options=options)


def test_weights_come_from_a_folder_without_the_network(tmp_path):
    saved = make_model("transformers", seed=5)
    saved.model.save_pretrained(tmp_path)
    model = make(name=None, pretrained_path=str(tmp_path))
    assert all(map(torch.equal, model.parameters(), saved.parameters()))
    classifier = make("classification", name=None, pretrained_path=str(tmp_path))
    assert torch.equal(classifier.model.transformer.wte.weight, saved.model.transformer.wte.weight)
    assert classifier(make_inputs("transformers", 2)).shape == (2, 3)


def test_factored_logits_are_the_logits_where_a_model_has_them():
    tokens = make_inputs("transformers", 3)
    model = make(**GPT2).eval()
    torch.testing.assert_close(model(tokens, factored=True).whole(), model(tokens))
    capped = make(name="gemma2", options={**SIZES, "num_key_value_heads": 1, "head_dim": 4}).eval()
    found = capped(tokens, factored=True)  # its logits are not the last layer's outputs
    assert not isinstance(found, FactoredLogits)
    torch.testing.assert_close(found, capped(tokens))


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"model.pretrained_path=.*config.json"):
        make(name=None, pretrained_path=str(tmp_path))


def test_classification_does_not_read_padding():
    model = make("classification", **BERT).eval()
    tokens = make_inputs("transformers", 2).clamp(min=1)
    tokens[:, 4:] = 0
    with torch.no_grad():
        whole, cut = model(tokens), model(tokens[:, :4])
    torch.testing.assert_close(whole, cut)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (BERT, r"reads the tokens that it shall predict; try \+model.options.is_decoder=true"),
        (
            {"name": "gpt-9"},
            r"model.name=gpt-9: transformers has no such type of model",
        ),
        ({"name": None}, r"model.name=None with model.pretrained_path=None: set one of them"),
        (
            {**GPT2, "pretrained_path": "p"},
            r"model.name=gpt2 with model.pretrained_path=p: set one",
        ),
        (
            {"name": None, "pretrained_path": "nowhere"},
            r"model.pretrained_path=nowhere: there is no",
        ),
        (
            {"name": "gpt2", "options": {**GPT2["options"], "n_positions": 4}},
            r"reads 4 tokens, the data have 6",
        ),
        (
            {"name": "gpt2", "options": {**GPT2["options"], "vocab_size": 5}},
            r"has a vocabulary of 5 tokens",
        ),
        (
            {"name": "gpt2", "options": {**GPT2["options"], "vocab_size": 50}},
            rf"of 50 tokens, the data have {NUM_TOKENS}",
        ),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_the_extra_is_named_if_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"pip install 'flfast\[transformers\]'"):
        make(**GPT2)
