"""The keys that users type, frozen: a change of this list is a change of the interface."""

from importlib.util import find_spec
from itertools import zip_longest

import pytest
from hydra import compose, initialize_config_dir
from models_by_name import TOKENS
from omegaconf import OmegaConf

from flfast.config.check import check
from flfast.train import CONF

SURFACE = """
adapter aggregation algorithm attack batch_size bn callbacks checkpoint.every
checkpoint.keep_best audit compression privacy secure checkpoint.keep_last client_states data
devices engine eval_every eval_examples faults finetune_epochs init_from loader.eval_batch_size
loader.num_workers loader.persistent_workers loader.pin_memory local_epochs
local_optimizer_state local_steps logger lr_schedule.scheduler lr_schedule.warmup_rounds
last_batch micro_batch mode model optimized_metric optimizer.lr pace.deadline pace.keep_first
partition recompute resume rounds selection sampler.count sampler.dropout sampler.fraction
sampler.holdout_clients schedule seed shift split.few_shot split.server_examples split.test
split.val stop strategy threads upload_clip_norm trainer.accelerator
trainer.accumulate_grad_batches trainer.devices trainer.precision trainer.gradient_clip_val
work task audit overwrite topology
"""


def test_keys_that_users_type_stay():
    with initialize_config_dir(version_base="1.3", config_dir=CONF):
        config = OmegaConf.to_container(compose("config"), resolve=False)
    for key in SURFACE.split():
        node = config
        for part in key.split("."):
            assert part in node, key
            node = node[part]
    listed = {key.partition(".")[0] for key in SURFACE.split()}
    assert listed | {"trainer"} == set(config), "a new top-level key belongs into this list"


@pytest.mark.slow  # `test_saved_config.py` composes some
@pytest.mark.parametrize("first", range(3))
def test_every_option_of_every_group_composes(root, first):
    """An option of every group at a time; a group that has no more of them stays as it is."""
    options = {}
    for path in sorted((root / "conf").glob("*/*.yaml")):
        options.setdefault(path.parent.name, []).append(f"{path.parent.name}={path.stem}")
    options.pop("hydra")
    if find_spec("optuna") is None:
        options.pop("hparams_search")
    options.pop("algorithm")  # many, and without defaults lists: see the next test
    with initialize_config_dir(version_base="1.3", config_dir=CONF):
        for overrides in [*zip_longest(*options.values())][first::3]:
            compose("config", overrides=list(filter(None, overrides)))


def test_a_choice_of_a_model_or_of_data_gives_way_to_that_of_the_user():
    def chosen(*overrides):
        config = compose("config", overrides=list(overrides))
        return [config[group]["_target_"].split(".")[-1] for group in ("optimizer", "partition")]

    with initialize_config_dir(version_base="1.3", config_dir=CONF):
        assert chosen() == ["SGD", "dirichlet"]
        assert chosen("data=shakespeare") == ["SGD", "natural"]
        for name in TOKENS:
            assert chosen(f"model={name}") == ["Adam", "dirichlet"]
        assert chosen("model=lstm", "optimizer=sgd", "data=shakespeare", "partition=iid") == [
            "SGD",
            "iid",
        ]
        assert chosen("experiment=reddi_shakespeare_words")[0] == "SGD"
        assert chosen("experiment=shakespeare_base")[0] == "AdamW"
        assert chosen("experiment=diloco") == ["AdamW", "iid"]


def test_only_searches_set_hydras_mode(root):
    """Elsewhere the tests do not compose a config to find it, see `quick_hydra.py`."""
    set_it = {
        path.parent.name
        for path in (root / "conf").rglob("*.yaml")
        if "mode" in (OmegaConf.load(path).get("hydra") or {})
    }
    assert set_it == {"hparams_search"}


def test_every_algorithm_passes_the_check(root):
    """The check knows what a run offers to algorithms, such as the seed."""
    with initialize_config_dir(version_base="1.3", config_dir=CONF):
        config = compose("config", ["logger=none"])
    for path in sorted((root / "conf" / "algorithm").glob("*.yaml")):
        config.algorithm = OmegaConf.load(path)
        check(config)


def test_every_file_of_a_mirrored_package_has_its_config(root):
    """conf/algorithm/fedprox.yaml is flfast/algorithms/fedprox.py; adding one edits nothing.

    The file may be in the zoo, in a folder of the same name.
    """
    mirrored = {
        "adapter": "models/adapters",
        "aggregation": "channel/aggregations",
        "algorithm": "algorithms",
        "attack": "channel/attacks",
        "audit": "audits",
        "devices": "federation/devices",
        "faults": "channel/faults",
        "model": "models",
        "partition": "datamodules/partitions",
        "shift": "datamodules/shifts",
        "sampler": "federation/samplers",
        "selection": "federation/selections",
        "stop": "federation/stops",
        "topology": "federation/topologies",
        "work": "federation/works",
    }
    contracts = {"none", "never", "full", "mean"}  # a constant, in the file of the contract
    for group, package in mirrored.items():
        for path in (root / "conf" / group).glob("*.yaml"):
            if path.stem in {"custom", "lightning"} or path.stem.startswith(
                "family_"
            ):  # settings of `family`
                continue
            target = OmegaConf.load(path)["_target_"].replace("flfast.zoo.", "flfast.")
            module = target.rpartition(".")[0]
            own = f"flfast.{package.replace('/', '.')}.{path.stem}"
            # A file named as the library that it imports would confuse.
            folder = own.rpartition(".")[0]
            in_contract = path.stem in contracts and module.rpartition(".")[0] == folder
            # Two rules that share most of their code, or a group whose options are a few lines.
            shared = folder in {module, module.rpartition(".")[0]} and (
                module == folder or (path.parent / f"{module.rpartition('.')[2]}.yaml").exists()
            )
            assert module in {own, f"{own}_model"} or in_contract or shared
