import pytest
import torch
from models_by_name import NUM_TOKENS, make_inputs, make_model
from torch import nn

from flfast.zoo.models.lstm import TokenLSTM


def build(vocabulary, *, num_tokens=None, input_shape=(80,)):
    return TokenLSTM(
        input_shape=input_shape,
        num_classes=vocabulary,
        num_tokens=vocabulary if num_tokens is None else num_tokens,
        task="language",
        embedding=8,
        hidden=256,
        layers=2,
    )


def test_the_number_of_parameters_is_as_published():
    """Reddi et al. 2021 print 820,522 for 90 characters, with one bias vector per layer."""
    with torch.device("meta"):
        params = dict(build(90).named_parameters())
    second = sum(p.numel() for name, p in params.items() if "bias_hh" in name)
    assert second == 2 * 4 * 256
    assert sum(p.numel() for p in params.values()) - second == 820_522


def test_it_computes_the_equations_of_an_lstm():
    model, tokens = make_model("lstm").double(), make_inputs("lstm", 2)
    hidden = model.lstm.hidden_size
    values = list(model.embedding(tokens).unbind(1))  # T of [B, D]
    for layer in range(2):
        weights = {
            name: getattr(model.lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh")
        }
        bias = getattr(model.lstm, f"bias_ih_l{layer}") + getattr(model.lstm, f"bias_hh_l{layer}")
        output = cell = torch.zeros(2, hidden, dtype=torch.float64)
        for place, value in enumerate(values):
            gates = value @ weights["weight_ih"].T + output @ weights["weight_hh"].T + bias
            admit, forget, new, show = gates.split(hidden, dim=1)
            cell = forget.sigmoid() * cell + admit.sigmoid() * new.tanh()
            output = values[place] = show.sigmoid() * cell.tanh()
    expected = torch.stack([model.fc(value) for value in values], dim=1)
    torch.testing.assert_close(model(tokens), expected)


def test_factored_logits_are_the_logits():
    model, tokens = make_model("lstm"), make_inputs("lstm", 3)
    torch.testing.assert_close(model(tokens, factored=True).whole(), model(tokens))


def test_other_tasks_read_the_last_position():
    model = make_model("lstm", task="classification")
    tokens = make_inputs("lstm", 3).clamp(min=1)
    features, _ = model.lstm(model.embedding(tokens))
    torch.testing.assert_close(model(tokens), model.fc(features[:, -1]))


@pytest.mark.parametrize(
    ("shape", "num_tokens", "found"),
    [
        ((5,), 0, r"no whole numbers of shape \[5\]"),
        ((1, 8), 9, r"whole numbers of shape \[1, 8\]"),
    ],
)
def test_inputs_that_are_no_tokens_are_refused(shape, num_tokens, found):
    with pytest.raises(
        ValueError, match=rf"model=lstm needs tokens, int64 \[T\]; the data are {found}"
    ):
        build(90, num_tokens=num_tokens, input_shape=shape)


def test_it_learns_to_repeat_the_token_before():
    model = make_model("lstm", options={"hidden": 16})
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(60):
        tokens = make_inputs("lstm", 32, seed=step)
        loss = nn.functional.cross_entropy(
            model(tokens)[:, 1:].flatten(0, 1), tokens[:, :-1].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 1.2 < torch.tensor(NUM_TOKENS).log()
