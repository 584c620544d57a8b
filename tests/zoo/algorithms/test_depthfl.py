"""DepthFL against its equations, in plain torch and double precision."""

import math

import pytest
import sliced_runs
import torch
from sliced_runs import EPOCHS, FAMILY, LR, ROUNDS, WAYS, population
from torch.nn import functional as F

import flfast
from flfast.zoo.models.multi_exit_cnn import multi_exit_cnn

SHAPE, CHANNELS, DEPTHS, RAMP = (1, 4, 4), [4, 4, 6], (3, 2, 1, 3), 2
OF = (
    "model.of=["
    + ",".join(
        f"{{multi_exit_cnn:{{channels:{CHANNELS},depth:{depth}}}}}".replace(" ", "")
        for depth in (3, 2, 1)
    )
    + "]"
)
DEPTHFL = (*FAMILY, OF, "algorithm=depthfl", f"algorithm.ramp={RAMP}", "bn=frozen")


def loss_of(model, x, y, rounds):
    """The local objective, from the features of each block."""
    features, logits = x, []
    for block, head in zip(model.blocks, model.exits, strict=True):
        features = block(features)
        logits.append(head(features.mean((2, 3))))
    total = sum(F.cross_entropy(z, y) for z in logits)
    for i, z in enumerate(logits):
        for j, other in enumerate(logits):
            if i != j:
                by = math.exp(-5 * (1 - min(rounds, RAMP) / RAMP) ** 2) / (len(logits) - 1)
                p = other.detach().softmax(1)
                total = total + by * (p * (p.log() - z.log_softmax(1))).sum(1).mean()
    return total


def expected(w):
    x, y, owner = population(SHAPE)
    for t in range(ROUNDS):
        total, num = ({n: torch.zeros_like(leaf) for n, leaf in w.items()} for _ in range(2))
        for k, depth in enumerate(DEPTHS):
            model = multi_exit_cnn(
                input_shape=SHAPE, num_classes=3, channels=CHANNELS, depth=depth
            ).double()
            model.load_state_dict({n: w[n] for n in model.state_dict() if n in w}, strict=False)
            model.eval()
            for layer in model.modules():
                layer.requires_grad_(not isinstance(layer, torch.nn.BatchNorm2d))  # bn=frozen
            optimizer = torch.optim.SGD(model.parameters(), lr=LR)
            for _ in range(EPOCHS):
                optimizer.zero_grad()
                loss_of(model, x[owner == k].double(), y[owner == k], t).backward()
                optimizer.step()
            for name, leaf in model.named_parameters():
                total[name] += leaf.detach() - w[name]
                num[name] += 1
        w = {name: w[name] + total[name] / num[name].clamp(min=1) for name in w}
    return w


@pytest.mark.slow
def test_rounds_follow_the_paper(tmp_path):
    w = sliced_runs.initial(tmp_path / "initial", *DEPTHFL, shape=SHAPE)
    wanted = expected(w)
    for name, way in WAYS.items():
        words = (*DEPTHFL, f"rounds={ROUNDS}", *way)
        found = sliced_runs.run(tmp_path / name, *words, shape=SHAPE)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
        assert not torch.equal(found["blocks.2.1.weight"], w["blocks.2.1.weight"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["algorithm.exits=heads"], "algorithm.exits=heads: is no part of the model"),
        (["model.of=[{multi_exit_cnn:{depth:1}},multi_exit_cnn]"], "must be the largest"),
        (["model.of=[{multi_exit_cnn:{depth:4}}]"], "model.depth=4: allowed: null, or 1 to 3"),
    ],
)
def test_bad_models_are_refused(tmp_path, words, message):
    with pytest.raises(flfast.ConfigError, match=message):
        sliced_runs.run(tmp_path / "run", *DEPTHFL, *words, "rounds=1", shape=SHAPE)
