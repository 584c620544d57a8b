"""Figure of a gradient inversion: originals above their reconstructions."""

from pathlib import Path

from flfast.audits.image_pairs import Pairs
from flfast.output.callbacks.figures import figure

_DPI = 150
_MOST = 16


def draw_pairs(path: Path, *, pairs: Pairs, title: str) -> None:
    """Write a PNG of at most 16 images.

    Of images with other than 1 or 3 channels, the first channel is drawn.
    """
    num = min(len(pairs.labels), _MOST)
    with figure(path, size=(max(1.5 * num, 7.5), 4.0), dpi=_DPI, title=title) as picture:
        axes = picture.subplots(2, num, squeeze=False)
        for place in range(num):
            for row, images in enumerate((pairs.originals, pairs.found)):
                image = images[place]
                shown = image.permute(1, 2, 0) if len(image) == 3 else image[0]
                axes[row, place].imshow(shown.numpy(), cmap="gray", vmin=0, vmax=1)
                axes[row, place].set_axis_off()
            label, guessed = int(pairs.labels[place]), int(pairs.guessed[place])
            name = {"fontsize": 9, "fontweight": "normal", "loc": "center"}
            axes[0, place].set_title(f"original, class {label}", **name)
            psnr = float(pairs.psnr[place])
            axes[1, place].set_title(f"as class {guessed}, {psnr:.1f} dB", **name)
