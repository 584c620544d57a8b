"""Backdoors: which examples are poisoned, and what the evaluation with a trigger counts."""

import pytest
import torch
from engine_runs import engine_of, net
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import nn

from flfast.channel.attacks.pixel_pattern import pixel_pattern
from flfast.config.errors import ConfigError
from flfast.datamodules.shifts import applying
from flfast.engines.fused.training import FusedTraining
from flfast.setup.robustness import build_channel, poison_examples
from flfast.state.weights import write_weights
from flfast.zoo.channel.attacks.edge_case import edge_case

PATTERN = {"fraction": 0.5, "target": 1, "share": 0.5, "size": 2, "value": 1.0, "scale": 1.0}
EDGE = {"fraction": 0.5, "source": 2, "target": 0, "share": 1.0, "scale": 1.0}
SIZES = [12, 18, 24, 12]


@pytest.fixture
def images(make_data):
    """Random images [1, 4, 4] of three classes, of four clients, as bytes or numbers."""

    def images(dtype=torch.float32, **options):
        values = torch.rand(sum(SIZES) + 9, 1, 4, 4, generator=torch.Generator().manual_seed(0))
        inputs = (values * 200).to(dtype) if dtype == torch.uint8 else values
        split = options.pop("split", (0.25, 0.25))
        return make_data(
            SIZES, features=(1, 4, 4), inputs=inputs, num_test=9, split=split, **options
        )

    return images


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
@pytest.mark.parametrize("in_memory", [True, False])
def test_a_share_of_the_attackers_training_examples_gets_the_pattern(
    images, dtype, in_memory, monkeypatch
):
    monkeypatch.setattr(applying, "free_memory", lambda: 2**40 if in_memory else 0)
    data = images(dtype)
    before = data.examples
    data.poison([1, 3], pixel_pattern(**PATTERN).backdoor)
    inputs = torch.stack([data.examples.inputs[i] for i in range(len(before.targets))])
    changed = (inputs != before.inputs).flatten(1).any(dim=1).nonzero().flatten().tolist()
    own = [data.train_clients.indices_of(k) for k in (1, 3)]
    others = [indices[before.targets[indices] != 1] for indices in own]
    assert len(changed) == sum(round(0.5 * len(indices)) for indices in others)
    assert set(changed) <= {int(i) for indices in others for i in indices}
    assert (inputs[changed][..., -2:, -2:] == (255 if dtype == torch.uint8 else 1)).all()
    assert (inputs[changed][..., :-2, :] == before.inputs[changed][..., :-2, :]).all()
    assert (data.examples.targets[changed] == 1).all()
    assert (data.examples.targets != before.targets).nonzero().flatten().tolist() == changed


def test_edge_cases_are_turned_images_of_the_source_class(images):
    data = images()
    before = data.examples
    data.poison([0], edge_case(**EDGE).backdoor)
    own = data.train_clients.indices_of(0)
    turned = own[before.targets[own] == 2]
    expected = before.inputs.clone()
    expected[turned] = expected[turned].rot90(2, (-1, -2))
    torch.testing.assert_close(data.examples.inputs, expected)
    assert (data.examples.targets[turned] == 0).all()


@pytest.mark.parametrize("attack", [pixel_pattern(**PATTERN), edge_case(**EDGE)])
def test_attack_success_is_the_share_of_triggered_images_in_the_target_class(
    images, make_federation, attack
):
    data = images()
    data.poison([0, 1], attack.backdoor)
    model = net(nn.Flatten, lambda: nn.Linear(16, 3))
    federation = make_federation(data, model, rounds=2)
    history = federation.run()
    write_weights(model, federation.server)
    backdoor, truth = attack.backdoor, data.examples.targets[data.central_test]
    tested = data.central_test[truth == 2 if backdoor.source else truth != backdoor.target]
    with torch.no_grad():
        found = model(backdoor.trigger(data.examples.inputs[tested])).argmax(dim=1)
    expected = float((found == backdoor.target).double().mean())
    assert history[-1]["attack/success"] == pytest.approx(expected)
    assert "attack/loss" not in history[-1]


def test_without_a_backdoor_there_is_no_such_column(images, make_federation):
    history = make_federation(images(), net(nn.Flatten, lambda: nn.Linear(16, 3))).run()
    assert not any(column.startswith("attack") for row in history for column in row)


def test_scale_replaces_the_model_and_one_leaves_it():
    assert pixel_pattern(**PATTERN).upload is None
    scaled = pixel_pattern(**{**PATTERN, "scale": 4.0}).upload
    assert scaled(torch.ones(2), None).tolist() == [4, 4]


@pytest.mark.parametrize("name", ["pixel_pattern", "edge_case"])
def test_every_yaml_makes_its_backdoor(name, root):
    attack = instantiate(OmegaConf.load(root / "conf" / "attack" / f"{name}.yaml"))
    assert attack.fraction == 0.2
    assert attack.upload is None
    assert attack.backdoor.share == 0.5


def composed(root, *overrides):
    with initialize_config_dir(str(root / "conf"), version_base="1.3"):
        return compose("config", list(overrides))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["attack.target=3"], r"attack.target=3 with 3 classes; allowed: 0 to 2"),
        (["attack.size=5"], r"attack.size=5 with images of 4 pixels; allowed: 1 to 4"),
    ],
)
def test_what_cannot_be_poisoned_is_refused(images, root, overrides, message):
    config = composed(root, "attack=pixel_pattern", *overrides)
    with pytest.raises(ConfigError, match=message):
        poison_examples(config, images())


def test_other_data_are_refused(images, make_data, root):
    with pytest.raises(ConfigError, match=r"attack.source=7 with 3 classes"):
        poison_examples(composed(root, "attack=edge_case"), images())
    same = composed(root, "attack=edge_case", "attack.source=2")
    with pytest.raises(ConfigError, match=r"attack.source=2 attack.target=2: nothing"):
        poison_examples(same, images())
    with pytest.raises(ConfigError, match=r"inputs of shape \[5\]; allowed: images"):
        poison_examples(composed(root, "attack=pixel_pattern"), make_data([6, 6]))
    loud = composed(root, "attack=pixel_pattern", "attack.value=2")
    with pytest.raises(ConfigError, match=r"attack.value=2.* allowed: 0 to 1"):
        poison_examples(loud, images(torch.uint8))


def test_attackers_of_the_channel_are_those_with_poisoned_examples(images, root):
    config, data = composed(root, "attack=pixel_pattern", "attack.fraction=0.5"), images()
    before = data.examples.targets
    poison_examples(config, data)
    changed = (data.examples.targets != before).nonzero().flatten()
    owner = {k for k in range(4) if set(changed.tolist()) & set(data.train_clients.indices_of(k))}
    assert owner == build_channel(config, data).attackers


def test_a_federation_learns_the_pattern(images, make_federation):
    data = images(split=(0.0, 0.0))
    data.poison([0, 1], pixel_pattern(**{**PATTERN, "share": 1.0}).backdoor)
    federation = make_federation(
        data, net(nn.Flatten, lambda: nn.Linear(16, 3)), rounds=30, eval_every=30, lr=0.5
    )
    federation.engine = engine_of(federation, FusedTraining, stack=1)
    assert federation.run()[-1]["attack/success"] > 0.9
