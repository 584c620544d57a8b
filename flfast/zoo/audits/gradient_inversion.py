"""Gradient inversion: can the server see a client's images in its upload?

Geiping, Bauermeister, Dröge, Moeller: Inverting Gradients: How easy is it to break privacy in
federated learning? NeurIPS 2020. The server is curious but follows the protocol. After the last
round, a client takes one step on a few examples, and the server gets its upload.

Labels: the gradient of the cross-entropy by the bias of class c is the mean over the batch of
p_c - [y = c]. So it is negative only for classes that the batch has. Zhao, Mopuri, Bilen: iDLG:
Improved Deep Leakage from Gradients, arXiv:2001.02610, equation 3, for one example. Wainakh et
al.: User-Level Label Leakage from Gradients in Federated Learning, PoPETs 2022, algorithm 1, for
classes that occur more than once.
"""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flfast.algorithms.contract.downloads import first_downloads
from flfast.audits.audit import OF_UPLOAD, Audit, Leak, UploadAudit
from flfast.channel.channel import Channel
from flfast.federation.loop import Federation
from flfast.lit.batchnorm import batchnorm_layers
from flfast.state.options import Count, NonNegative, NonNegativeInt
from flfast.state.randomness import generator, torch_generator
from flfast.zoo.audits.gradient_matching import match_gradient, surrogate_gradient
from flfast.zoo.audits.image_pairs import Pairs, draw_pairs, paired, pixel_bounds
from flfast.zoo.audits.interception import Intercepted, intercept

Labels = Literal["recovered", "known"]

log = logging.getLogger(__name__)


def gradient_inversion(
    *,
    client: NonNegativeInt,
    num_images: Count,
    labels: Labels,
    iterations: Count,
    total_variation: NonNegative,
) -> UploadAudit:
    """Reconstructs the images of one local step from the upload."""
    attack = _Inversion(client, num_images, labels, iterations, total_variation)
    return Audit("gradient_inversion", attack.check, attack.measure, OF_UPLOAD)


class _Inversion(NamedTuple):
    """The attack, with the options of `gradient_inversion`."""

    client: int
    num_images: int
    labels: Labels
    iterations: int
    total_variation: float

    def check(self, federation: Federation) -> None:
        """See `Audit`."""
        data, algorithm = federation.data, federation.algorithm
        option, task = "audit=gradient_inversion", data.examples.task
        shape = data.examples.input_shape
        if task != "classification" or len(shape) != 3 or 0 in shape:
            raise ValueError(
                f"{option} with inputs of shape {list(shape)} and task={task}: it reconstructs "
                f"images [channels, height, width] of classes; allowed: audit=membership or none"
            )
        uploaded = first_downloads(algorithm, federation.initial)(0)["params"]
        missing = [name for name in federation.initial["params"] if name not in uploaded]
        if missing:
            raise ValueError(
                f"{option} with algorithm={algorithm.name}: its uploads lack the model's "
                f"{missing[0]}, and the attack needs all of the gradient; allowed: an algorithm "
                f"that uploads a whole model, such as fedavg"
            )
        if self.labels == "recovered":
            class_gradient(uploaded, data.num_classes)
        self._check_client(federation)

    def _check_client(self, federation: Federation) -> None:
        data, site = federation.data, federation.engine.site
        takes_part = self.client in data.candidates
        available = len(data.train_clients.indices_of(self.client)) if takes_part else 0
        if self.num_images > available:
            raise ValueError(
                f"audit.num_images={self.num_images} of audit.client={self.client}, who trains on "
                f"{available} examples; allowed: at most as many of one of the "
                f"{federation.population} clients that may train, such as {data.candidates[0]}"
            )
        has_batchnorm = any(batchnorm_layers(site.model))
        if self.num_images == 1 and has_batchnorm and not site.module.freeze_batchnorm:
            raise ValueError(
                "audit.num_images=1 with BatchNorm: a batch of one example has no variance; "
                "allowed: audit.num_images >= 2, or model.norm=group"
            )

    def measure(self, federation: Federation) -> Leak | None:
        """See `Audit`."""
        rng = generator(federation.seed, "gradient inversion", self.client)
        own = federation.data.train_clients.indices_of(self.client)
        chosen = rng.choice(own, self.num_images, replace=False)
        received = intercept(federation, self.client, chosen)
        if received is None:
            return None
        if isinstance(received, str):
            log.warning("audit=gradient_inversion: the upload did not arrive: %s", received)
            return None
        pairs, distance = self._attacked(federation, received, chosen)
        return self._leak(federation, chosen, pairs, distance)

    def _attacked(
        self, federation: Federation, received: Intercepted, chosen: np.ndarray
    ) -> tuple[Pairs, float]:
        """Reconstructions of the chosen examples from their upload, and their cosine distance."""
        data = federation.data
        raw, truth = next(iter(data.fetch([chosen])))
        originals = data.examples.transform(raw, dtype=torch.float32)
        gradient = {name: -leaf.float() for name, leaf in received.change.items()}
        guessed = truth
        if self.labels == "recovered":
            guessed = leaked_labels(gradient, data.num_classes, self.num_images)
        bounds = pixel_bounds(raw, data.examples.transform)
        log.info("audit=gradient_inversion: %d iterations", self.iterations)
        noise = torch_generator(federation.seed, "gradient inversion")
        found, distance = match_gradient(
            surrogate_gradient(federation.engine.site.module, received.start, gradient, guessed),
            list(gradient.values()),
            bounds=bounds,
            start=torch.randn(originals.shape, generator=noise),
            total_variation=self.total_variation,
            iterations=self.iterations,
        )
        return paired(originals, found, truth, guessed, bounds), distance

    def _leak(
        self, federation: Federation, chosen: np.ndarray, pairs: Pairs, distance: float
    ) -> Leak:
        sees = _sees(federation.engine.channel)
        about = f"client {self.client}, {self.num_images} examples in one step"
        title = f"Gradient inversion · {federation.title}\n{about}; the server sees {sees}"
        return Leak(
            rows=[
                {
                    "audit": "gradient_inversion",
                    "round": federation.history[-1]["round"],
                    "client_id": self.client,
                    "example": int(chosen[place]),
                    "label": int(pairs.labels[place]),
                    "attacked_label": int(pairs.guessed[place]),
                    "mse": float(pairs.mse[place]),
                    "psnr_db": float(pairs.psnr[place]),
                    "cosine_distance": distance,
                    "server_sees": sees,
                }
                for place in range(len(chosen))
            ],
            sentence=(
                f"{about}: PSNR {float(pairs.psnr.mean()):.1f} dB, {pairs.num_right} of "
                f"{self.num_images} labels, cosine distance {distance:.2g}; the server sees {sees}"
            ),
            draw=partial(draw_pairs, pairs=pairs, title=title),
        )


def _sees(channel: Channel) -> str:
    """The form in which an upload reaches the server, in words."""
    privacy = channel.privacy
    if privacy.wrap is not None:
        found = f"an upload of privacy={privacy.name}"
    elif privacy.local_multiplier:
        found = f"an upload clipped and with the client's noise (privacy={privacy.name})"
    elif privacy.central_noise is not None:
        found = f"an upload clipped, without noise: privacy={privacy.name} trusts the server"
    else:
        found = "the plain upload"
    if channel.compression.encode is not None:
        found += f", decoded from compression={channel.compression.name}"
    return found


def leaked_labels(gradient: Mapping[str, Tensor], num_classes: int, num_labels: int) -> Tensor:
    """The most likely labels of a batch, int64 [B], ascending; certain if B = 1.

    The gradient is by parameter name, in the order of the model, up to a positive factor.

    Raises:
        ValueError: if no layer has C outputs.
    """
    found = class_gradient(gradient, num_classes).double().clone()
    negative = (found < 0).nonzero().flatten()
    negative = negative[found[negative].argsort()][:num_labels]
    # What one example adds, estimated from all of them; equation 5 of Wainakh et al.
    impact = found[found < 0].sum() * (1 + 1 / num_classes) / num_labels
    labels = negative.tolist()
    found[negative] -= impact
    while len(labels) < num_labels:
        label = int(found.argmin())
        labels.append(label)
        found[label] -= impact
    return torch.tensor(sorted(labels))


def class_gradient(gradient: Mapping[str, Tensor], num_classes: int) -> Tensor:
    """Gradient by the last layer's bias [C], or row sums of its weights if it has no bias.

    Raises:
        ValueError: if no layer has C outputs.
    """
    fitting = [leaf for leaf in gradient.values() if leaf.shape[:1] == (num_classes,)]
    if not fitting:
        raise ValueError(
            f"audit.labels=recovered: no layer of the model has {num_classes} outputs; allowed: "
            f"audit.labels=known"
        )
    return fitting[-1].flatten(start_dim=1).sum(dim=1) if fitting[-1].ndim > 1 else fitting[-1]
