"""Draws `masks.png` at the end of a run of the task `segmentation`: test images with masks."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_only

from flfast.output.callbacks.figures import COLOURS, tick_label
from flfast.output.callbacks.run_picture import RunPicture, or_warn
from flfast.output.callbacks.text_samples import server_logits
from flfast.output.results.table import write_csv
from flfast.state.messages import naming
from flfast.state.options import Count, Formats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flfast.federation.loop import Federation

_ROWS = ("image", "mask", "prediction")
_MOST_NAMED = 12


class MaskSamples(RunPicture):
    """Shows what the server's model predicts for some test images, evenly over all of them.

    Nothing is drawn for other tasks, without test images, or if the server has no complete model.
    """

    file_name = "masks.png"

    def __init__(self, *, num_images: Count, dpi: Count, formats: Formats) -> None:
        super().__init__(dpi=dpi, formats=formats)
        self._num_images = num_images

    @rank_zero_only
    @or_warn
    def on_run_end(self, federation: Federation) -> None:
        """Write the picture, and a table of its images."""
        data, tests = federation.data, federation.data.central_test
        task = data.examples.task_type
        if (
            task.name != "segmentation"
            or not len(tests)
            or not federation.algorithm.evaluate_server
        ):
            return
        num = min(self._num_images, len(tests))
        chosen = tests[np.linspace(0, len(tests) - 1, num).round().astype(np.int64)]
        batches = [*data.eval_loader(chosen)]
        images = torch.cat([batch.inputs for batch in batches])
        masks = torch.cat([batch.targets for batch in batches])
        inputs = data.examples.transform(images, dtype=torch.float32)
        with torch.no_grad():
            logits = server_logits(federation)(inputs)
        found = task.by_group(task.statistics(logits, masks), torch.arange(num), num)["dice"]
        own = data.splits["test"]
        owner = dict(zip(own.indices.tolist(), own.owner().tolist(), strict=True))
        rows = [
            (example, owner.get(example, ""), f"{dice:.6g}")
            for example, dice in zip(chosen.tolist(), found.tolist(), strict=True)
        ]
        table = federation.run_dir / "masks.csv"
        with naming(table):
            write_csv(table, ("example", "client_id", "dice"), rows)
        titles = [
            f"{'test' if k == '' else f'client {k}'}\nDice {float(d):.2f}" for _, k, d in rows
        ]
        classes = torch.stack([masks.long(), logits.argmax(dim=1)])
        names = data.examples.class_names
        with self.picture(federation, size=(0.4 + 1.7 * num, 6.2)) as picture:
            _draw(picture, images.numpy(), classes.numpy(), titles)
            if names:
                from matplotlib.patches import Patch

                shown = zip(names[1:], cycle(COLOURS.values()), strict=False)
                handles = [Patch(color=colour, label=tick_label(name)) for name, colour in shown]
                picture.legend(handles=handles[:_MOST_NAMED], loc="outside lower center", ncols=6)


def _draw(picture: Figure, images: np.ndarray, classes: np.ndarray, titles: list[str]) -> None:
    """Images [M, channels, H, W], and over them true and predicted classes [2, M, H, W]."""
    from matplotlib.colors import ListedColormap

    colours = ListedColormap([*COLOURS.values()])
    grid = picture.subplots(len(_ROWS), len(images), squeeze=False)
    for (row, column), axes in np.ndenumerate(grid):
        image = images[column]
        in_colour = len(image) == 3 and image.dtype == np.uint8
        axes.imshow(image.transpose(1, 2, 0) if in_colour else image[0], cmap="gray")
        if row:
            shown = classes[row - 1, column]
            # The palette in turn; the background and ignored pixels have no colour.
            of_class = np.ma.masked_where(shown <= 0, (shown - 1) % len(COLOURS))
            ends = {"vmin": -0.5, "vmax": len(COLOURS) - 0.5}
            axes.imshow(of_class, cmap=colours, alpha=0.55, interpolation="nearest", **ends)
        else:
            axes.set_title(titles[column], fontsize=10)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        if not column:
            axes.set_ylabel(_ROWS[row])
