"""Runs with an adapter through the command: what they leave, and who can open it."""

import pytest
import torch
from hydra import compose, initialize_config_dir
from tables import rows
from torch import nn

from flfast.api.trained import trained_model
from flfast.commands.saved.evaluation_files import evaluate, metrics_of
from flfast.config.errors import ConfigError
from flfast.config.own import NOTHING
from flfast.config.saved_config import read_config
from flfast.config.saved_options import EVALUATE, read_options
from flfast.config.saved_run import find_run
from flfast.export import export
from flfast.models.adapters.lora import lora
from flfast.setup.build_models import build_adapter
from flfast.setup.opened_run import open_run
from flfast.state.weights import read_weights
from flfast.tasks.factored_logits import FactoredLogits
from flfast.train import CONF
from flfast.zoo.models.lstm import TokenLSTM

SMALL = (
    *("experiment=quick", "callbacks=none", "model.hidden=[16]", "engine=eager", "rounds=1"),
    "+callbacks.weights._target_=flfast.output.callbacks.final_weights.FinalWeights",
    *("+callbacks.weights.max_personal=null", "+callbacks.weights.model=null", "batch_size=100"),
)


def evaluated(run, personal):
    options, overrides = read_options([f"run={run}"], EVALUATE)
    opened = open_run(find_run(options, overrides, NOTHING), personal=personal)
    return metrics_of(evaluate(opened, "test"))


def loss(run, column="global/loss"):
    return pytest.approx(float(rows(run)[-1][column]), rel=1e-5)


def first_loss(run):
    return float(rows(run)[0]["global/loss"])


def load(path):
    return torch.load(path, weights_only=True)


@pytest.mark.slow
def test_what_a_run_leaves_can_be_opened_and_continued(flfast_run, tmp_path):
    base = flfast_run(*SMALL, "local_epochs=1", run_dir="base")
    given = load(base / "model.pt")
    words = (f"init_from={base / 'model.pt'}", "adapter=lora", "adapter.rank=2")
    run = flfast_run(*SMALL, *words, "algorithm=ditto")
    assert first_loss(run) == loss(base)
    # The complete model differs from the base in its weights of layers, by a low rank.
    found = load(run / "model.pt")
    assert found.keys() == given.keys()
    change = {name: leaf - given[name] for name, leaf in found.items()}
    ranks = {name: torch.linalg.matrix_rank(x, rtol=1e-3) for name, x in change.items() if x.any()}
    assert ranks == {"fc1.weight": 2, "fc.weight": 2}
    # Both kinds of models predict as in the run, from the adapter's files.
    assert evaluated(run, personal=False)["global/loss"] == loss(run)
    assert evaluated(run, personal=True)["personal/loss"] == loss(run, "personal/loss")
    own = [load(path) for path in (run / "personal").glob("*.pt")]
    assert {name.split(".lora")[0] for leaves in own for name in leaves} == {"fc1", "fc"}
    # The complete model goes on without an adapter, in Python, and as an exported program.
    again = flfast_run(*SMALL, f"init_from={run / 'model.pt'}", run_dir="again")
    assert first_loss(again) == loss(run)
    model = trained_model(run, read_config(run), NOTHING)
    assert all(torch.equal(model.state_dict()[name], leaf) for name, leaf in found.items())
    path = tmp_path / "client.pt2"
    export([f"run={run}", "format=torch", "client=0", f"output={path}"])
    assert path.exists()


def test_every_member_of_an_opened_family_has_the_base_that_the_server_made(flfast_run):
    member = "{mlp:{hidden:[16]}}"
    words = [word for word in SMALL if not word.startswith("model.")]
    words += ["model=family", f"model.of=[{member},{member}]", "model.feature_dim=null"]
    words += ["adapter=lora", "adapter.rank=[2,1]", "algorithm=flora"]
    run = flfast_run(*words)
    found = load(run / "model.pt")
    options, overrides = read_options([f"run={run}"], EVALUATE)
    opened = open_run(find_run(options, overrides, NOTHING), personal=False)
    for one in (opened.learner, *opened.learner.members.others):
        base = one.adapted.base.leaves["fc1.base_layer.weight"]
        assert torch.equal(base, found["fc1.weight"])


class ReadsWeights(nn.Sequential):
    """Uses the weights of its last layer without calling it."""

    def forward(self, inputs):
        return nn.functional.linear(self[1](self[0](inputs)), self[2].weight)


LAYERS = [nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)]


@pytest.mark.parametrize(
    ("model", "words", "message"),
    [
        (nn.Sequential(*LAYERS), ("bn=aggregate",), "with bn=aggregate: the base is frozen"),
        (ReadsWeights(*LAYERS), ("bn=frozen",), "reads the weights of 2 without calling"),
    ],
    ids=["batchnorm", "weights"],
)
def test_adapters_that_would_be_wrong_are_refused(make_data, model, words, message):
    with initialize_config_dir(version_base="1.3", config_dir=CONF):
        config = compose("config", ["adapter=lora", *words])
    with pytest.raises(ConfigError, match=message):
        build_adapter(config, model, read_weights(model), make_data([4, 5]))


def test_a_last_layer_with_an_adapter_is_called():
    """Models of text give the factors of large logits; those of a layer with an adapter differ."""
    sizes = {"embedding": 3, "hidden": 4, "layers": 1}
    model = TokenLSTM(input_shape=(4,), num_classes=7, num_tokens=7, task="language", **sizes)
    tokens = torch.arange(8).reshape(2, 4) % 7
    assert isinstance(model(tokens, factored=True), FactoredLogits)
    options = {"alpha": 1.0, "dropout": 0.0, "train_bias": False, "freeze_a": False}
    options["base_bits"] = None
    lora(model, rank=1, target_modules=None, **options)
    model(tokens, factored=True).sum().backward()
    assert model.fc.lora_B.default.weight.grad.any()
