"""Fixtures: small federations, worlds of real ranks, and the command in this process."""

import atexit
import gc
import logging
import shutil
import sys
import warnings
from functools import cache, partial
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import quick_hydra  # noqa: F401 - changes Hydra
import torch
import torch.distributed as dist
from _pytest.doctest import DoctestModule
from hypothesis import settings
from lightning.fabric.utilities import registry
from lightning.pytorch.utilities import rank_zero_only
from processes import Command
from ranks import Ranks
from solving import solve
from torch import nn
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from tqdm import tqdm

from flfast import train
from flfast.algorithms.fedavg import fedavg
from flfast.datamodules.examples import Examples
from flfast.datamodules.federated import FederatedDataModule, Split
from flfast.datamodules.fetching import Loading
from flfast.datamodules.transforms import BatchTransform
from flfast.distributed.launcher import on_ranks
from flfast.distributed.process_group import enter
from flfast.distributed.world import ALONE, launched_world
from flfast.engines.eager import EagerTraining
from flfast.engines.engine import Engine
from flfast.engines.fused.graph.trace import operators
from flfast.engines.site import Site
from flfast.federation.loop import Federation
from flfast.federation.samplers.uniform import uniform
from flfast.lit.local_module import LocalModule
from flfast.lit.strategies.dp import DataParallelStrategy  # noqa: F401 - registers itself
from flfast.lit.strategies.fsdp import FullyShardedStrategy
from flfast.lit.trainers import Trainers
from flfast.setup.external_world import quiet_lightning
from flfast.state.native.compiler import COMPILERS, missing, packed
from flfast.state.plan import Batching, RoundPlan
from flfast.state.store import ClientStates
from flfast.state.weights import read_weights


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Drop files without an example, each of which pytest would import and search."""
    return [node for node in (yield) if not isinstance(node, DoctestModule) or has_example(node)]


def has_example(module):
    return ">>> " in module.path.read_text(encoding="utf-8")


_raw_device_count_nvml = torch.cuda._raw_device_count_nvml


def _gpus_of_driver():
    try:
        return _raw_device_count_nvml()
    except (OSError, AttributeError):
        return -1  # torch's own answer, too


# Otherwise pytest captures torch's log of every tensor that it traces.
logging.getLogger("torch.__trace").propagate = True

# Bars of other libraries leave a thread for ever, beside which no rank is forked.
tqdm.monitor_interval = 0

# Every Trainer looks for callbacks in all installed packages: most of the time to make one.
registry.entry_points = cache(registry.entry_points)

# Each operator that torch traces looks for a GPU. Without a driver the whole library path is
# searched each time.
torch.cuda._raw_device_count_nvml = cache(_gpus_of_driver)

# TorchElastic reads the source of every frame of pytest's stack, dozens of times for each world,
# only to name its events in a log. That takes longer than everything else about a world's start.
dynamic_rendezvous.get_method_name = lambda depth=2: "unnamed"

settings.register_profile("flfast", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("fast", settings.get_profile("flfast"), max_examples=20)
settings.load_profile("flfast")


def pytest_configure(config):
    """With `-m ""`, and in the slow tests, Hypothesis tries more examples."""
    if config.getoption("markexpr") == "not slow":
        settings.load_profile("fast")


def pytest_collection_modifyitems(items):
    """Slow modules first, so that no worker has one left when the others are done."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish():
    """Take modules and tests out of garbage collection, and collect the rest less often.

    It saves a tenth of the time of some tests. Traced graphs make many objects and few cycles.
    """
    gc.freeze()
    gc.set_threshold(100_000)
    gc.enable()
    # Not before pytest has ended: it collects garbage five times, of all modules that is slow.
    atexit.register(gc.unfreeze)


@pytest.fixture(scope="session", autouse=True)
def traced_before_all_tests():
    """Trace a backward pass before any other: the hardest case for processes forked later."""

    def step(state):
        leaf = state["p"].detach().requires_grad_()
        leaf.sum().backward()

    operators(step, [{"p": torch.ones(3)}])


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)
    quiet_lightning()


@pytest.fixture
def make_data():
    """Make a data module with random examples and given client sizes."""

    def make(
        sizes, *, features=(5,), num_classes=3, seed=0, split=(0.0, 0.0), loading=None, **kwargs
    ):
        rng = torch.Generator().manual_seed(seed)
        num = sum(sizes)
        num_test, num_server = kwargs.pop("num_test", 0), kwargs.pop("server_examples", 0)
        num += num_server
        targets = torch.arange(num + num_test) % num_classes
        centres = torch.randn(num_classes, *features, generator=rng)
        inputs = centres[targets] + torch.randn(num + num_test, *features, generator=rng)
        examples = Examples(
            inputs=kwargs.pop("inputs", inputs),
            targets=kwargs.pop("targets", targets),
            num_classes=num_classes,
            input_shape=tuple(features),
            transform=kwargs.pop("transform", BatchTransform()),
            is_test=np.arange(num + num_test) >= num if num_test else None,
            task=kwargs.pop("task", "classification"),
        )
        owner = np.repeat(np.arange(len(sizes)), sizes)
        data = FederatedDataModule(
            lambda: examples,
            lambda num_examples: owner,
            seed=seed,
            split=Split(*split, server_examples=num_server, pooled=kwargs.pop("pooled", False)),
            loading=loading or Loading(eval_batch_size=7),
            **kwargs,
        )
        data.setup()
        return data

    return make


def _model(data, given, precision):
    """The given model, or a linear one, in the data type that a run would give it."""
    if given is None:
        torch.manual_seed(1)  # noqa: TID251 - a test's own model
        given = nn.Linear(data.examples.input_shape[0], data.num_classes)
    return given.double() if precision == "64-true" else given


@pytest.fixture
def make_federation(tmp_path):
    """Make a federation over a data module; everything else has a default."""

    def make(
        data, model=None, *, algorithm=None, rounds=1, lr=0.1, optimizer=torch.optim.SGD, **options
    ):
        trainer = options.pop("trainer", {})
        model = _model(data, model, trainer.get("precision"))
        plan = RoundPlan(
            round_idx=1,
            phase=0,
            lr=lr,
            batching=options.pop("batching", Batching(batch_size=2)),
            local_epochs=options.pop("local_epochs", 1),
            local_steps=options.pop("local_steps", None),
            strategy=options.pop("strategy", "single"),
            shard=options.pop("shard", "clients"),
            devices="cpu",
            precision="32-true",
        )
        algorithm = algorithm or fedavg(weighting="samples")
        if callable(algorithm):
            algorithm = algorithm(read_weights(model))
        module = LocalModule(
            model,
            algorithm,
            optimizer,
            data.examples.task_type,
            freeze_batchnorm=options.pop("freeze_batchnorm", False),
        )
        trainer = {
            "accelerator": "cpu",
            "devices": 1,
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "limit_val_batches": 0,
            "num_sanity_val_steps": 0,
            "max_epochs": 1,
            "default_root_dir": tmp_path,
            **trainer,
        }
        sampling = {"fraction": 1.0, "count": None, "dropout": 0.0, **options.pop("sampling", {})}
        world = options.pop("world", ALONE)
        group_params = options.pop("group_params", 1)

        def make_trainer(plan):
            if plan.strategy == "ddp" and plan.shard == "batch" and world.size > 1:
                return L.Trainer(**{**trainer, "strategy": "ddp", "devices": world.size})
            if plan.strategy == "fsdp" and world.size > 1:
                strategy = FullyShardedStrategy(group_params)
                return L.Trainer(
                    **{
                        **trainer,
                        "strategy": strategy,
                        "devices": world.size,
                        "inference_mode": False,
                    }
                )
            if plan.strategy == "dp":
                return L.Trainer(**{**trainer, "strategy": "dp", "devices": 2})
            return L.Trainer(**trainer)

        adapted = options.pop("adapted", None)
        trainers = Trainers(module, make_trainer)
        site = Site(module, data, trainers, ClientStates(), world, adapted=adapted)
        all_calls = algorithm.calls
        sites = {local.name: site.of(local, states=site.states) for local in all_calls}
        calls = {name: (own, EagerTraining(own)) for name, own in sites.items()}
        engine = Engine(site, EagerTraining(site), calls=calls)
        return Federation(
            algorithm=algorithm,
            engine=engine,
            data=data,
            sampler=partial(uniform, **sampling),
            plans=lambda round_idx, history: plan._replace(round_idx=round_idx),
            initial=read_weights(model),
            rounds=rounds,
            eval_every=options.pop("eval_every", 1),
            seed=data.seed,
            run_dir=tmp_path,
            **options,
        )

    return make


@pytest.fixture
def in_world():
    """Run a function on every rank of a new world of real processes."""

    def in_world(size, work):
        """Run `work(world)` on every rank of a new world; returns the results by rank."""

        def rank():
            world = launched_world()
            rank_zero_only.rank = world.rank
            enter("gloo", timeout_s=120)
            dist.barrier()  # work without a collective may end before others have connected
            result = work(world)
            dist.destroy_process_group()
            return result

        return dict(sorted(on_ranks(size, rank).items()))  # they come as ranks end

    return in_world


@pytest.fixture
def flfast_run(tmp_path, monkeypatch):
    """Run the command in this process; returns the run folder."""

    def run(*overrides, run_dir="run"):
        folder = tmp_path / run_dir
        where = "hydra.sweep.dir" if "-m" in overrides else "hydra.run.dir"
        if not any(override.startswith("trainer.devices=") for override in overrides):
            overrides = (*overrides, "trainer.devices=1")  # the default is one rank per core
        monkeypatch.setattr(sys, "argv", ["flfast", *overrides, f"{where}={folder}"])
        with warnings.catch_warnings():
            train.main()
        return folder

    return run


@pytest.fixture(scope="session")
def ran_once(tmp_path_factory):
    """Folder of a run in this process: forked ones need not import and trace again.

    It takes 2 s of CPU time, and saves each forked process 1 s.
    """
    folder = tmp_path_factory.mktemp("ran-once") / "run"
    words = ("experiment=quick", "rounds=1", "model.hidden=[8]", "trainer.devices=1")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(sys, "argv", ["flfast", *words, f"hydra.run.dir={folder}"])
        train.main()
    return folder


@pytest.fixture
def start(tmp_path, request):
    """Start a command in a new process and folder; it is killed at the end of the test."""
    request.getfixturevalue("ran_once")
    started = []

    def start(main, *arguments, folder="process", env=None):
        place = tmp_path / folder
        place.mkdir(exist_ok=True)
        started.append(Command(main, arguments, place, env or {}))
        return started[-1]

    yield start
    for command in started:
        command.kill()


@pytest.fixture(scope="session")
def solve_in(tmp_path_factory):
    """Solve a problem in a given way: in this process, or in a world that is reused."""
    folder = tmp_path_factory.mktemp("worlds")
    worlds = {}

    def solve_in(problem, way):
        if way.size == 1:
            return solve(problem, way)
        world = worlds.setdefault(way.size, Ranks(way.size, folder))
        return world.solve(problem, way)

    yield solve_in
    for world in worlds.values():
        world.close()


@pytest.fixture(scope="session")
def root():
    """Root of the checkout."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def kernels():
    """Our C++ operators, where they can be compiled, or an installed wheel has them."""
    if packed() is None and not any(map(shutil.which, COMPILERS)):
        pytest.skip("no C++ compiler")
    assert missing() is None
    return torch.ops.flfast
