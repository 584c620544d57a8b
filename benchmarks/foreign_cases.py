"""Modules that others wrote, and data for them; `benchmarks.foreign_modules` runs each.

A case makes a module and its data as the module's own users do for `Trainer.fit`. What they would
write for flfast alone are the lines of `beside`, which are counted.
"""

import argparse
import importlib
import inspect
import json
import math
import os
import re
import site
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WORDS = (
    *("rounds=2", "partition.num_clients=4", "partition.min_samples=2", "trainer.devices=1"),
    *("logger=csv", "callbacks=files", "threads=1"),
)
ALGORITHMS = ("fedavg", "scaffold", "fedprox", "ditto")
"""Those of each case; what does not fit a module is refused in one line, which the table has."""

BY_HAND = "and the module optimizes by hand"
"""Why algorithms that act within local steps may refuse a module."""

TOLERANCE = 1e-4
"""Largest difference of final weights of the two engines, relative to the largest weight."""


class Case(NamedTuple):
    """A module and its data.

    Attributes:
        given: makes the arguments of `flfast.run`, as for `Trainer.fit`.
        package: whose module it is, by its name in the package index; None: flfast's environment.
        words: settings of the run.
        beside: changes the arguments, in lines that nobody writes for `Trainer.fit`.
        refused: what the message says if clients cannot have the data; None if it runs.
        silent: whether the module's evaluation logs nothing, so nothing is measured.
    """

    given: Callable[[], dict[str, Any]]
    package: str | None = None
    words: tuple[str, ...] = ()
    beside: Callable[[dict[str, Any]], None] | None = None
    refused: str | None = None
    silent: bool = False


def boring() -> dict[str, Any]:
    """Lightning's smallest module: its evaluation logs nothing, its rate has a schedule."""
    demo = importlib.import_module("lightning.pytorch.demos.boring_classes")
    return {"model": demo.BoringModel(), "data": demo.BoringDataModule()}


def boring_with_loaders() -> dict[str, Any]:
    """The same module, whose own loaders are the data."""
    demo = importlib.import_module("lightning.pytorch.demos.boring_classes")
    return {"model": demo.BoringModel(), "data": demo.BoringModel()}


def manual() -> dict[str, Any]:
    """Manual optimization."""
    demo = importlib.import_module("lightning.pytorch.demos.boring_classes")
    return {"model": demo.ManualOptimBoringModel(), "data": demo.BoringDataModule()}


def demo_model() -> dict[str, Any]:
    """A module with a training step only; a batch is one tensor."""
    demo = importlib.import_module("lightning.pytorch.demos.boring_classes")
    return {"model": demo.DemoModel(), "data": demo.BoringDataModule()}


def stream() -> dict[str, Any]:
    """A DataModule of streams, which have no examples to divide."""
    demo = importlib.import_module("lightning.pytorch.demos.boring_classes")
    return {"model": demo.BoringModel(), "data": demo.BoringDataModuleNoLen()}


def several_streams() -> dict[str, Any]:
    """A DataModule with two training loaders."""
    demo = importlib.import_module("lightning.pytorch.demos.boring_classes")
    return {"model": demo.BoringModel(), "data": demo.IterableBoringDataModule()}


def _wikitext() -> Any:
    """The Dataset of Lightning's language models, of a text that is made here."""
    transformer = importlib.import_module("lightning.pytorch.demos.transformer")
    words = [f"w{(7 * i + i * i // 5) % 40}" for i in range(2400)]
    lines = (" ".join(words[i : i + 30]) for i in range(0, len(words), 30))
    Path("data").mkdir(exist_ok=True)
    Path("data/wikitext-2.txt").write_text("\n".join(lines), encoding="utf-8")
    return transformer.WikiText2(block_size=12, download=False)


def transformer() -> dict[str, Any]:
    """A language model whose targets are several numbers; its forward asks tensors for values."""
    demo, data = importlib.import_module("lightning.pytorch.demos.transformer"), _wikitext()
    return {"model": demo.LightningTransformer(vocab_size=data.vocab_size), "data": data}


def lstm() -> dict[str, Any]:
    """A language model that keeps its hidden state from batch to batch, in the order it needs."""
    demo, data = importlib.import_module("lightning.pytorch.demos.lstm"), _wikitext()
    utils = importlib.import_module("torch.utils.data")
    loader = utils.DataLoader(data, batch_sampler=demo.SequenceSampler(data, batch_size=20))
    return {"model": demo.LightningLSTM(vocab_size=data.vocab_size), "data": loader}


def mnist_net() -> dict[str, Any]:
    """A DataModule of images, for a network of torch's, which has no training step."""
    boring_classes, data = (
        importlib.import_module(f"lightning.pytorch.demos.{name}")
        for name in ("boring_classes", "mnist_datamodule")
    )
    np, raw = importlib.import_module("numpy"), Path("data/MNIST/raw")
    raw.mkdir(parents=True, exist_ok=True)
    for name, num in (("train", 120), ("t10k", 40)):
        images = np.random.default_rng(0).integers(256, size=(num, 28, 28), dtype=np.uint8)
        labels = np.arange(num, dtype=np.uint8) % 10
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
            content = bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()
            (raw / f"{name}-{kind}-ubyte").write_bytes(content)
    module = data.MNISTDataModule("data", val_split=20, num_workers=0)
    return {"model": boring_classes.Net(), "data": module}


def _torch() -> Any:
    return importlib.import_module("torch")


def geo_classes() -> dict[str, Any]:
    """Images of four classes."""
    torch, geo = _torch(), importlib.import_module("torchgeo.trainers")
    data = {"image": torch.rand(32, 3, 32, 32), "label": torch.arange(32) % 4}
    model = geo.ClassificationTask("resnet18", None, in_channels=3, num_classes=4)
    return {"model": model, "data": data, "test_data": {k: v[:8] for k, v in data.items()}}


def geo_pixels() -> dict[str, Any]:
    """A class for each pixel."""
    torch, geo = _torch(), importlib.import_module("torchgeo.trainers")
    data = {"image": torch.rand(32, 3, 32, 32), "mask": torch.randint(3, (32, 32, 32))}
    model = geo.SemanticSegmentationTask("unet", "resnet18", None, in_channels=3, num_classes=3)
    return {"model": model, "data": data, "test_data": {k: v[:8] for k, v in data.items()}}


def molecules() -> dict[str, Any]:
    """A network over graphs; a batch is an object of the package with tensors of any length."""
    data, nn, models = (
        importlib.import_module(f"chemprop.{name}") for name in ("data", "nn", "models")
    )
    chains = ["C" * i + tail for i in range(1, 11) for tail in ("O", "N", "Cl", "C=O")]
    points = [data.MoleculeDatapoint.from_smi(smi, [float(len(smi))]) for smi in chains]
    parts = data.MoleculeDataset(points[::2]), data.MoleculeDataset(points[1::2])
    train, test = (data.build_dataloader(part, batch_size=4) for part in parts)
    model = models.MPNN(
        nn.BondMessagePassing(d_h=16),
        nn.MeanAggregation(),
        nn.RegressionFFN(input_dim=16, hidden_dim=8),
    )
    return {"model": model, "data": train, "test_data": test}


def forecasts() -> dict[str, Any]:
    """Series; a batch is a pair of a dict and a pair whose second part is None."""
    np, pd, pf = (
        importlib.import_module(name) for name in ("numpy", "pandas", "pytorch_forecasting")
    )
    times = np.tile(np.arange(24), 8)
    shop = np.repeat(np.arange(8), 24)
    frame = pd.DataFrame(
        {"time": times, "shop": shop.astype(str), "sold": np.sin(times / 3 + shop)}
    )
    about = {"max_encoder_length": 8, "max_prediction_length": 3, "target": "sold"}
    about |= {"time_varying_unknown_reals": ["sold"], "group_ids": ["shop"], "time_idx": "time"}
    train = pf.TimeSeriesDataSet(frame[frame.time < 20], static_categoricals=["shop"], **about)
    test = pf.TimeSeriesDataSet.from_dataset(train, frame, predict=True, stop_randomization=True)
    model = pf.TemporalFusionTransformer.from_dataset(
        train,
        hidden_size=8,
        attention_head_size=1,
        hidden_continuous_size=4,
        optimizer="adam",
        log_interval=0,
    )
    loaders = [data.to_dataloader(train=data is train, batch_size=8) for data in (train, test)]
    return {"model": model, "data": loaders[0], "test_data": loaders[1]}


def _uncertain(name: str, num_outputs: int, **options: Any) -> dict[str, Any]:
    torch = _torch()
    box, data, nets = (
        importlib.import_module(f"lightning_uq_box.{part}")
        for part in ("uq_methods", "datamodules", "models")
    )
    net = nets.MLP(n_hidden=[16], n_outputs=num_outputs, dropout_p=0.1)
    optimizer = partial(torch.optim.Adam, lr=0.01)
    model = getattr(box, name)(net, optimizer=optimizer, **options)
    return {"model": model, "data": data.ToyHeteroscedasticDatamodule(n_points=240, batch_size=10)}


def dropout_at_prediction() -> dict[str, Any]:
    """Regression by MC dropout."""
    loss = importlib.import_module("lightning_uq_box.uq_methods").NLL()
    return _uncertain("MCDropoutRegression", 2, num_mc_samples=5, loss_fn=loss, burnin_epochs=0)


def quantiles() -> dict[str, Any]:
    """Regression of quantiles."""
    return _uncertain("QuantileRegression", 3, quantiles=[0.1, 0.5, 0.9])


def template() -> dict[str, Any]:
    """A project in lightning-hydra-template's shape: no object, only its own config files."""
    project = ROOT / "tests" / "template_project"
    site.addsitedir(str(project))  # a user starts Python there
    os.environ["PROJECT_ROOT"] = str(Path.cwd())
    search = f"hydra.searchpath=[file://{project / 'configs'}]"
    return {"words": (search, "model=digits_net", "data=digits_own")}


def without_memory(given: dict[str, Any]) -> None:
    """Clients draw samples in any order, and batches differ in size: the state begins anew."""
    kind: Any = type(given["model"])

    class Fresh(kind):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            self.hidden = None
            return super().training_step(batch, batch_idx)

    given.update(data=given["data"].dataset, model=Fresh(given["model"].model.vocab_size))


CASES = {
    "lightning: BoringModel": Case(boring, silent=True),
    "lightning: BoringModel, its own loaders": Case(boring_with_loaders, silent=True),
    "lightning: ManualOptimBoringModel": Case(manual, words=("optimizer.lr=0.001",), silent=True),
    "lightning: DemoModel": Case(demo_model),
    "lightning: BoringDataModuleNoLen": Case(stream, refused="is an IterableDataset"),
    "lightning: IterableBoringDataModule": Case(several_streams, refused="gives 2 loaders"),
    "lightning: LightningTransformer": Case(transformer),
    "lightning: SequenceSampler": Case(lstm, refused="draws by SequenceSampler"),
    "lightning: LightningLSTM": Case(lstm, words=("optimizer.lr=0.1",), beside=without_memory),
    "lightning: MNISTDataModule": Case(mnist_net),
    "torchgeo: ClassificationTask": Case(geo_classes, "torchgeo"),
    "torchgeo: SemanticSegmentationTask": Case(geo_pixels, "torchgeo"),
    "chemprop: MPNN": Case(molecules, "chemprop"),
    "pytorch-forecasting: TemporalFusionTransformer": Case(forecasts, "pytorch-forecasting"),
    "lightning-uq-box: MCDropoutRegression": Case(dropout_at_prediction, "lightning-uq-box"),
    "lightning-uq-box: QuantileRegression": Case(quantiles, "lightning-uq-box"),
    "lightning-hydra-template: a project": Case(template),
}
"""By name, which begins with that of the package."""

NEEDED = {"torchgeo": ("requests",)}
"""What packages import beside what they say they need."""


def run(case: Case) -> dict[str, Any]:
    """Run a case under each algorithm, as `engine=auto` decides; a row of the table.

    `differs` lists what was not promised. Algorithms may refuse a module's optimizer.
    """
    flfast = importlib.import_module("flfast")
    start, differs, refused = time.monotonic(), list[str](), dict[str, str]()
    engines, equal = dict[str, tuple[str, str]](), set[bool]()
    for algorithm in ALGORITHMS:
        words = (*WORDS, *case.words, f"algorithm={algorithm}")
        try:
            found = _trained(flfast, case, Path(algorithm), words)
        except flfast.ConfigError as error:
            refused[algorithm] = str(error)
            continue
        engines[algorithm] = _engine(Path(algorithm))
        if engines[algorithm][0] == "fused":
            eager = _trained(flfast, case, Path(f"{algorithm}-eager"), (*words, "engine=eager"))
            equal.add(_difference(found.model, eager.model) < TOLERANCE)
        differs += [f"{algorithm}: {what}" for what in _lacks(found, Path(algorithm), case)]
    allowed = [case.refused] if case.refused else ["needs local steps of SGD", BY_HAND]
    differs += [
        f"{name}: {text}"
        for name, text in refused.items()
        if not any(part in text for part in allowed)
    ]
    by_hand = any(BY_HAND in text for text in refused.values())
    needed = {"fedavg"} if by_hand else {"fedavg", "fedprox", "ditto"}
    if case.refused is not None and engines:
        differs.append(f"{', '.join(engines)} ran")
    if case.refused is None and not needed <= engines.keys():
        differs.append(f"only {', '.join(engines) or 'nothing'} ran")
    if False in equal:
        differs.append("the engines end at other weights")
    lines, _ = inspect.getsourcelines(case.beside) if case.beside else ((), 0)
    return {
        "algorithms": [*engines],
        "engine": ", ".join(dict.fromkeys(engine for engine, _ in engines.values())),
        "why": "; ".join(dict.fromkeys(why for _, why in engines.values() if why)),
        "refused": "; ".join(dict.fromkeys(refused.values())),
        "equal": "-" if not equal else "yes" if equal == {True} else "no",
        "lines": max(0, len(lines) - 2),  # without the name and the docstring
        "differs": differs,
        "seconds": time.monotonic() - start,
        "version": version(case.package or "lightning"),
    }


def _trained(flfast: Any, case: Case, folder: Path, words: tuple[str, ...]) -> Any:
    """The run of a case, with the same initial weights and data each time."""
    importlib.import_module("lightning").seed_everything(0, verbose=False)
    given = case.given()
    if case.beside is not None:
        case.beside(given)
    given = {"words": (), **given}
    return flfast.run(*words, *given.pop("words"), folder=folder, **given)


def _engine(folder: Path) -> tuple[str, str]:
    """The engine of a run, and why not the other one, as its log says."""
    log = (folder / "train.log").read_text(encoding="utf-8")
    found = re.search(r"\| engine (\w+)(?: \((.*?)\))?, \S+ on ", log)
    return (found[1], found[2] or "") if found else ("?", "")


def _difference(one: Any, other: Any) -> float:
    """The largest difference of two models' weights, relative to the largest weight."""
    ours, theirs = one.state_dict(), other.state_dict()
    pairs = [(ours[name].double(), theirs[name].double()) for name in ours]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)


def _lacks(found: Any, folder: Path, case: Case) -> Iterator[str]:
    """What a finished run lacks: a loss, an evaluation, finite weights, a checkpoint."""
    rows = found.history
    last = dict(rows[-1] if isinstance(rows, list) else rows.iloc[-1])  # without pandas a list
    numbers = {name: value for name, value in last.items() if isinstance(value, (int, float))}
    measured = {name for name, value in numbers.items() if not math.isnan(value)}
    if not math.isfinite(numbers.get("train/loss", math.nan)):
        yield f"train/loss={last.get('train/loss')}"
    views = ("global/", "local/", "personal/") if "ditto" in folder.name else ("global/", "local/")
    for view in () if case.silent else views:
        if not any(name.startswith(view) for name in measured):
            yield f"no {view}* is measured"
    if not all(value.isfinite().all() for value in found.model.state_dict().values()):
        yield "weights are not finite"
    if hasattr(found.model, "training_step"):
        saved = _torch().load(folder / "model.ckpt", weights_only=False)["state_dict"]
        if saved.keys() != found.model.state_dict().keys():
            yield "model.ckpt has other weights"


def main() -> None:
    """Run the case that is named, in a temporary folder; the last line is its row as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=CASES)
    case = CASES[parser.parse_args().name]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        row = run(case)
        os.chdir(ROOT)
    sys.stdout.write(f"\n{json.dumps(row)}\n")


if __name__ == "__main__":
    main()
