"""What models of their own cost: `python -m benchmarks.families --root PFLLIB_FOLDER`.

A round of a family of three, against rounds of its members alone on the same clients; a family of
one, against its model; and a loop over clients whose states are on disk, as HtFLlib has it.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import flfast
from flfast.models.cnn import cnn
from flfast.models.family import SameFeatures, with_same_features
from flfast.models.mlp import mlp
from flfast.output.results.table import read_history
from flfast.zoo.models.lenet import lenet

MEMBERS, CLIENTS, DIM, WARM = ("mlp", "cnn", "lenet"), 20, 64, 2
WORDS = (
    *("experiment=pfllib_mnist", "algorithm=fedproto", "callbacks=files", "strategy=single"),
    *("engine=fused", "eval_every=99", "checkpoint.every=0"),
)


def seconds(folder: Path, root: Path, rounds: int, *model: str) -> list[float]:
    """Seconds of the rounds of a run, without the first ones."""
    flfast.run(*WORDS, *model, f"data.root={root}", f"rounds={WARM + rounds}", folder=folder)
    rows = read_history(folder / "metrics.csv")
    return [float(row["time/train_s"]) for row in rows[1 + WARM :]]


def family(*members: str, dim: int | None = DIM) -> tuple[str, ...]:
    """The words of a family."""
    size = "null" if dim is None else dim
    return "model=family", f"model.of=[{','.join(members)}]", f"model.feature_dim={size}"


def part(root: Path, folder: Path, place: int) -> Path:
    """A folder with the clients of a member only."""
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True)
        for number, client in enumerate(range(place, CLIENTS, len(MEMBERS))):
            file = root / split / f"{client}.npz"
            (folder / split / f"{number}.npz").symlink_to(file.absolute())
    return folder


class Loop:
    """FedProto in plain PyTorch: clients one after another, whose models are files."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder, self.prototypes = folder, dict[int, torch.Tensor]()
        makers = (
            lambda: mlp(input_shape=(1, 28, 28), num_classes=10, hidden=[200, 200], dropout=0.0),
            lambda: cnn(
                input_shape=(1, 28, 28), num_classes=10, channels=[32, 64], hidden=512, padding=0
            ),
            lambda: lenet(input_shape=(1, 28, 28), num_classes=10),
        )
        self.data: list[TensorDataset] = []
        for k in range(CLIENTS):
            saved = np.load(root / "train" / f"{k}.npz", allow_pickle=True)["data"].item()
            pair = torch.from_numpy(saved["x"]), torch.from_numpy(saved["y"])
            self.data.append(TensorDataset(*pair))
            model = with_same_features(makers[k % len(makers)](), DIM)
            torch.save(model, folder / f"{k}.pt")

    def features(self, model: SameFeatures, x: torch.Tensor) -> torch.Tensor:
        """Pooled features [B, DIM]."""
        pooled = F.adaptive_avg_pool1d(model.body(x).unsqueeze(1), DIM)
        return pooled.squeeze(1)

    def round(self) -> float:
        """Seconds of a round of all clients."""
        start, found = time.perf_counter(), dict[int, list[torch.Tensor]]()
        for k, data in enumerate(self.data):
            model = torch.load(self.folder / f"{k}.pt", weights_only=False)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
            for x, y in DataLoader(data, 10, shuffle=True, drop_last=True):
                z = self.features(model, x)
                loss = F.cross_entropy(model.head(z), y)
                if self.prototypes:
                    target = z.detach().clone()
                    for i, label in enumerate(y.tolist()):
                        if label in self.prototypes:
                            target[i] = self.prototypes[label]
                    loss = loss + F.mse_loss(target, z)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                for x, y in DataLoader(data, 10):
                    z = self.features(model, x)
                    for i, label in enumerate(y.tolist()):
                        found.setdefault(label, []).append(z[i])
            torch.save(model, self.folder / f"{k}.pt")
        self.prototypes = {label: torch.stack(rows).mean(0) for label, rows in found.items()}
        return time.perf_counter() - start


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="MNIST as PFLlib divides it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[float]] = {}
    with TemporaryDirectory(prefix="flfast-families-") as place:
        folder = Path(place)
        roots = {m: part(given.root, folder / m, i) for i, m in enumerate(MEMBERS)}
        (folder / "states").mkdir()
        loop = Loop(given.root, folder / "states")
        loop.round()
        for n in range(given.repeats):
            runs = {
                "family": (given.root, family(*MEMBERS)),
                **{m: (roots[m], family(m)) for m in MEMBERS},
                "family of one": (roots["lenet"], family("lenet", dim=None)),
                "model": (roots["lenet"], ("model=lenet",)),
            }
            for name, (root, model) in runs.items():
                own = seconds(folder / f"{n}" / name, root, given.rounds, *model)
                found.setdefault(name, []).extend(own)
            found.setdefault("loop", []).append(loop.round())
    middle = {name: statistics.median(times) for name, times in found.items()}
    total = sum(middle[m] for m in MEMBERS)
    lines = [f"{name}: {value:.3f} s a round" for name, value in middle.items()]
    lines += [
        f"family / its members alone: {middle['family'] / total:.3f}",
        f"family of one / model: {middle['family of one'] / middle['model']:.3f}",
        f"loop / family: {middle['loop'] / middle['family']:.2f}",
    ]
    sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
