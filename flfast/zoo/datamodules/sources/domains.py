"""Images of the same classes from several domains, such as photos, sketches and paintings.

The layout of PACS (Li et al. 2017, arXiv:1710.03077), DomainNet (Peng et al. 2019,
arXiv:1812.01754), Office-Caltech10 (Gong et al. 2012) and Digit-5 as image files.
"""

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from flfast.datamodules.examples import Examples
from flfast.datamodules.sources.decoded_images import load_images
from flfast.datamodules.sources.held_out import held_out_test
from flfast.datamodules.sources.hidden_files import say_left_out, visible
from flfast.datamodules.sources.image_folder import list_class_folders
from flfast.datamodules.transforms import image_transform
from flfast.state.options import BelowOne, Count, NonNegativeInt, Positive
from flfast.state.randomness import generator
from flfast.state.regular_file import reading


def domains(  # noqa: PLR0913 - one parameter an option
    *,
    root: str,
    clients_per_domain: Count,
    test_domain: str | None,
    test_fraction: BelowOne,
    image_size: Count | None,
    in_memory: bool,
    cache: str | None,
    channels: Literal[1, 3],
    mean: list[float],
    std: list[Positive],
    random_crop: NonNegativeInt,
    random_flip: bool,
    seed: int,
) -> Examples:
    """Images below `root/DOMAIN/CLASS/`. A client is a domain, or a random part of one.

    Domains and classes are numbered in the order of their names. Client k has examples of domain k
    // clients_per_domain. The seed determines the test set and the parts.

    Raises:
        ValueError: if there are no domains with classes, a file is not an image, sizes differ, or
            a domain has too few images for its clients.
    """
    transform = image_transform(
        mean=mean, std=std, channels=channels, random_crop=random_crop, random_flip=random_flip
    )
    found = _list_domains(Path(root).expanduser())
    if test_domain is not None and test_domain not in found.names:
        raise ValueError(
            f"data.test_domain={test_domain}; allowed: null, {', '.join(found.names)}"
        )
    is_test = _test_set(found, test_domain, test_fraction=test_fraction, seed=seed)
    inputs = load_images(
        found.paths, channels=channels, image_size=image_size, in_memory=in_memory, cache=cache
    )
    return Examples(
        inputs=inputs,
        targets=torch.from_numpy(found.targets),
        num_classes=len(found.classes),
        transform=transform,
        is_test=is_test,
        owner=_clients(found, is_test, clients_per_domain, test_domain, seed),
        class_names=tuple(found.classes),
        client_names=tuple(
            name if clients_per_domain == 1 else f"{name} {part}"
            for name in found.names
            if name != test_domain
            for part in range(clients_per_domain)
        ),
    )


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


def _test_set(
    listing: _Listing, test_domain: str | None, *, test_fraction: float, seed: int
) -> np.ndarray:
    if test_domain is not None:
        return listing.domain == listing.names.index(test_domain)
    kinds = listing.domain * len(listing.classes) + listing.targets
    return held_out_test(kinds, test_fraction=test_fraction, seed=seed)


def _clients(
    listing: _Listing, is_test: np.ndarray, per_domain: int, test_domain: str | None, seed: int
) -> np.ndarray:
    """Client of every example, int64 [N]; -1 in the test domain."""
    rng = generator(seed, "parts of domains")
    owner = np.full(len(listing.domain), -1, dtype=np.int64)
    names = [name for name in listing.names if name != test_domain]
    for number, name in enumerate(names):
        for test in (False, True):
            own = np.flatnonzero((listing.domain == listing.names.index(name)) & (is_test == test))
            if not test and len(own) < per_domain:
                raise ValueError(
                    f"data.clients_per_domain={per_domain}: domain {name} has {len(own)} training "
                    f"images; allowed: 1 to {len(own)}"
                )
            owner[rng.permutation(own)] = number * per_domain + np.arange(len(own)) % per_domain
    return owner
