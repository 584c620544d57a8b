"""Gradient inversion: can the server see a client's images in its upload?

Geiping, Bauermeister, Dröge, Moeller: Inverting Gradients: How easy is it to break privacy in
federated learning? NeurIPS 2020. The server is curious but follows the protocol. After the last
round, a client takes one step on a few examples, and the server gets its upload.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import rich
import torch
from rich.progress import track
from torch import Tensor

from flfast.algorithms.contract.downloads import first_downloads
from flfast.algorithms.kit.wrapping import check_one_call
from flfast.audits.audit import Audit, Leak
from flfast.audits.gradient_matching import match_gradient
from flfast.audits.image_pairs import Pairs, paired, pixel_bounds
from flfast.audits.interception import Intercepted, intercept
from flfast.audits.inversion_figure import draw_pairs
from flfast.audits.label_leakage import class_gradient, leaked_labels
from flfast.audits.surrogate_gradient import surrogate_gradient
from flfast.lit.batchnorm import batchnorm_layers
from flfast.state.options import Count, NonNegative, NonNegativeInt
from flfast.state.randomness import generator, torch_generator

if TYPE_CHECKING:
    import numpy as np

    from flfast.channel.channel import Channel
    from flfast.federation.loop import Federation

Labels = Literal["recovered", "known"]

log = logging.getLogger(__name__)


def gradient_inversion(
    *,
    client: NonNegativeInt,
    num_images: Count,
    labels: Labels,
    iterations: Count,
    total_variation: NonNegative,
) -> Audit:
    """Reconstructs the images of one local step from the upload.

    Args:
        client: whose images; the examples are drawn from the seed.
        num_images: B, examples of the step, which is one batch.
        labels: `recovered` from the upload, or `known` to the server.
        iterations: of the optimizer.
        total_variation: weight of the total variation, which prefers smooth images.
    """
    return Audit(
        "gradient_inversion",
        check=partial(_check, client=client, num_images=num_images, labels=labels),
        measure=partial(
            _measure,
            client=client,
            num_images=num_images,
            labels=labels,
            iterations=iterations,
            total_variation=total_variation,
        ),
    )


def _check(federation: Federation, *, client: int, num_images: int, labels: Labels) -> None:
    data, algorithm, model = federation.data, federation.algorithm, federation.engine.site.model
    option, task, shape = "audit=gradient_inversion", data.examples.task, data.examples.input_shape
    if task != "classification" or len(shape) != 3 or 0 in shape:
        raise ValueError(
            f"{option} with inputs of shape {list(shape)} and task={task}: it reconstructs images "
            f"[channels, height, width] of classes; allowed: audit=membership or none"
        )
    check_one_call(algorithm, option)
    uploaded = first_downloads(algorithm, federation.initial)(0)["params"]
    missing = [name for name in federation.initial["params"] if name not in uploaded]
    if missing:
        raise ValueError(
            f"{option} with algorithm={algorithm.name}: its uploads lack the model's "
            f"{missing[0]}, and the attack needs all of the gradient; allowed: an algorithm that "
            f"uploads a whole model, such as fedavg"
        )
    if labels == "recovered":
        class_gradient(uploaded, data.num_classes)
    if client not in data.candidates:
        raise ValueError(
            f"audit.client={client}: does not take part; allowed: one of the "
            f"{federation.population} clients that may train, such as {data.candidates[0]}"
        )
    available = len(data.train_clients.indices_of(client))
    if num_images > available:
        raise ValueError(
            f"audit.num_images={num_images}: client {client} has {available} training examples; "
            f"allowed: 1 to {available}"
        )
    has_batchnorm = any(True for _ in batchnorm_layers(model))
    if num_images == 1 and has_batchnorm and not federation.engine.site.module.freeze_batchnorm:
        raise ValueError(
            "audit.num_images=1 with BatchNorm: a batch of one example has no variance; allowed: "
            "audit.num_images >= 2, or model.norm=group"
        )


def _measure(
    federation: Federation,
    *,
    client: int,
    num_images: int,
    labels: Labels,
    iterations: int,
    total_variation: float,
) -> Leak | None:
    chosen = _chosen(federation, client, num_images)
    received = intercept(federation, client, chosen)
    if received is None:
        return None
    if isinstance(received, str):
        log.warning("audit=gradient_inversion: the upload did not arrive: %s", received)
        return None
    data = federation.data
    raw, truth = next(iter(data.fetch([chosen])))
    originals = data.examples.transform(raw, dtype=torch.float32)
    gradient = {name: -leaf.float() for name, leaf in received.change.items()}
    guessed = truth
    if labels == "recovered":
        guessed = leaked_labels(gradient, data.num_classes, num_images)
    bounds = pixel_bounds(raw, data.examples.transform)
    found, distance = _reconstruct(
        federation,
        received,
        gradient,
        guessed,
        bounds=bounds,
        shape=originals.shape,
        iterations=iterations,
        total_variation=total_variation,
    )
    pairs = paired(originals, found, truth, guessed, bounds)
    sees = _sees(federation.engine.channel)
    about = f"client {client}, {num_images} examples in one step"
    return Leak(
        rows=_rows(federation, client, chosen[: len(truth)], pairs, distance, sees),
        sentence=(
            f"{about}: PSNR {float(pairs.psnr.mean()):.1f} dB, {pairs.num_right} of {num_images} "
            f"labels, cosine distance {distance:.2g}; the server sees {sees}"
        ),
        draw=partial(
            draw_pairs,
            pairs=pairs,
            title=f"Gradient inversion · {federation.title}\n{about}; the server sees {sees}",
        ),
    )


def _chosen(federation: Federation, client: int, num_images: int) -> np.ndarray:
    """The examples of the attacked step, int64 [B]; a function of seed and client."""
    own = federation.data.train_clients.indices_of(client)
    rng = generator(federation.seed, "gradient inversion", client)
    found: np.ndarray = rng.choice(own, num_images, replace=False)
    return found


def _reconstruct(  # noqa: PLR0913 - what the server knows
    federation: Federation,
    received: Intercepted,
    gradient: dict[str, Tensor],
    labels: Tensor,
    *,
    bounds: tuple[Tensor, Tensor],
    shape: torch.Size,
    iterations: int,
    total_variation: float,
) -> tuple[Tensor, float]:
    console = rich.get_console()
    steps = track(
        range(iterations),
        description="gradient inversion",
        console=console,
        disable=not console.is_terminal,
    )
    log.info("audit=gradient_inversion: %d iterations", iterations)
    rng = torch_generator(federation.seed, "gradient inversion")
    return match_gradient(
        surrogate_gradient(federation.engine.site.module, received.start, gradient, labels),
        list(gradient.values()),
        bounds=bounds,
        start=torch.randn(shape, generator=rng),
        total_variation=total_variation,
        iterations=steps,
        num_iterations=iterations,
    )


def _sees(channel: Channel) -> str:
    """What of an upload reaches the server, in words."""
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


def _rows(
    federation: Federation,
    client: int,
    chosen: np.ndarray,
    pairs: Pairs,
    distance: float,
    sees: str,
) -> list[dict[str, Any]]:
    return [
        {
            "audit": "gradient_inversion",
            "round": federation.history[-1]["round"],
            "client_id": client,
            "example": int(chosen[place]),
            "label": int(pairs.labels[place]),
            "attacked_label": int(pairs.guessed[place]),
            "mse": float(pairs.mse[place]),
            "psnr_db": float(pairs.psnr[place]),
            "cosine_distance": distance,
            "server_sees": sees,
        }
        for place in range(len(pairs.labels))
    ]
