"""What convolutional models ask of their input."""


def check_image(
    input_shape: tuple[int, ...], *, model: str, smallest: int = 1, remedy: str = ""
) -> tuple[int, int, int]:
    """Input shape as (channels, H, W).

    Args:
        input_shape: shape of one input.
        model: choice and settings that matter here, for the message.
        smallest: least H and W, in pixels.
        remedy: what else helps against too small images, for the message.

    Raises:
        ValueError: if the input is no image, or too small.
    """
    if len(input_shape) != 3:
        raise ValueError(
            f"{model} needs images [channels, H, W], the data have shape {list(input_shape)}; "
            "use model=mlp or model=logistic"
        )
    channels, height, width = input_shape
    if min(height, width) < smallest:
        others = ", ".join(filter(None, [remedy, "model=mlp or model=logistic"]))
        raise ValueError(
            f"{model} needs images of at least {smallest}x{smallest}, "
            f"the data have {channels}x{height}x{width}; use {others}"
        )
    return channels, height, width
