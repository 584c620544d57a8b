"""Images of the same classes from several domains, such as photos, sketches and paintings.

The layout of PACS (Li et al. 2017, arXiv:1710.03077), DomainNet (Peng et al. 2019,
arXiv:1812.01754), Office-Caltech10 (Gong et al. 2012) and Digit-5 as image files.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.held_out import held_out_test
from flfast.datamodules.sources.hidden_files import say_left_out, visible
from flfast.datamodules.sources.image_folder import list_class_folders
from flfast.datamodules.sources.source import ImageSource
from flfast.state.options import BelowOne, Count
from flfast.state.randomness import generator
from flfast.state.regular_file import reading


class _Listing(NamedTuple):
    """Sorted names of domains and classes; file, class and domain of each of N images."""

    names: list[str]
    classes: list[str]
    paths: list[str]
    targets: np.ndarray
    domain: np.ndarray


def _list_domains(folder: Path) -> _Listing:
    from torchvision.datasets.folder import IMG_EXTENSIONS

    with reading("data.root must hold images in DOMAIN/CLASS/"):
        hidden = list[Path]()
        inside = [path.name for path in folder.iterdir() if path.is_dir()]
        names = sorted(visible(folder, inside, hidden))
        say_left_out(hidden, IMG_EXTENSIONS)
        listings = [list_class_folders(folder / name) for name in names]
    if len(names) < 2:
        raise ValueError(
            f"data.root={folder} must hold images in DOMAIN/CLASS/ of at least two domains; "
            f"found: {', '.join(names) or 'no folder'}"
        )
    classes = sorted({name for _, own in listings for name in own})
    samples = [
        (path, classes.index(own[label]), number)
        for number, (listed, own) in enumerate(listings)
        for path, label in listed
    ]
    paths, targets, domain = zip(*samples, strict=True)
    return _Listing(names, classes, list(paths), np.array(targets), np.array(domain))


@dataclass(frozen=True, kw_only=True)
class Domains(ImageSource):
    """Images below `root/DOMAIN/CLASS/`. A client is a domain, or a random part of one.

    Domains and classes are numbered in the order of their names. Client k has examples of domain k
    // clients_per_domain. The seed determines the test set and the parts.
    """

    root: str
    clients_per_domain: Count
    test_domain: str | None
    test_fraction: BelowOne
    channels: Literal[1, 3]
    seed: int

    def load(self) -> Examples:
        """All images, by domain and class.

        Raises:
            ValueError: if there are no domains with classes, a file is not an image, sizes differ,
                or a domain has too few images for its clients.
        """
        listing = _list_domains(Path(self.root).expanduser())
        if self.test_domain is not None and self.test_domain not in listing.names:
            names = ", ".join(listing.names)
            raise ValueError(f"data.test_domain={self.test_domain}; allowed: null, {names}")
        is_test = self._is_test(listing)
        named = [name for name in listing.names if name != self.test_domain]
        owner = self._clients(listing, is_test, named)  # may refuse: before images are decoded
        parts = [f" {part}" for part in range(self.clients_per_domain)]
        return Examples(
            **self.read_images(listing.paths, self.channels),
            targets=torch.from_numpy(listing.targets),
            num_classes=len(listing.classes),
            is_test=is_test,
            owner=owner,
            class_names=tuple(listing.classes),
            client_names=tuple(
                f"{name}{part}" for name in named for part in (parts if len(parts) > 1 else [""])
            ),
        )

    def _is_test(self, listing: _Listing) -> np.ndarray:
        if self.test_domain is not None:
            return listing.domain == listing.names.index(self.test_domain)
        kinds = listing.domain * len(listing.classes) + listing.targets
        return held_out_test(kinds, test_fraction=self.test_fraction, seed=self.seed)

    def _clients(self, listing: _Listing, is_test: np.ndarray, named: list[str]) -> np.ndarray:
        """Client of every example, int64 [N]; -1 in the test domain, which is not `named`."""
        rng, num = generator(self.seed, "parts of domains"), self.clients_per_domain
        owner = np.full(len(listing.domain), -1, dtype=np.int64)
        for number, name in enumerate(named):
            is_named = listing.domain == listing.names.index(name)
            for test in (False, True):
                members = np.flatnonzero(is_named & (is_test == test))
                if not test and len(members) < num:
                    raise ValueError(
                        f"data.clients_per_domain={num}: domain {name} has {len(members)} "
                        f"training images; allowed: 1 to {len(members)}"
                    )
                owner[rng.permutation(members)] = number * num + np.arange(len(members)) % num
        return owner
