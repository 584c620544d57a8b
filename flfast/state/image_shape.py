"""Images are [channels, H, W]. Another order is refused where the shape leaves no doubt."""


def refuse_channels_last(shape: tuple[int, ...]) -> None:
    """Refuse an image [H, W, channels]: it has 1, 3 or 4 channels, and larger sides.

    They are equal or at least 16, so three axes of nine sensors, [9, 128, 3], pass.

    Raises:
        ValueError: with what is allowed.
    """
    if len(shape) != 3 or shape[2] not in {1, 3, 4} or min(shape[:2]) <= 4:
        return
    if shape[0] == shape[1] or min(shape[:2]) >= 16:
        raise ValueError(
            f"inputs of shape {list(shape)} look like [H, W, channels]; allowed: channels first, "
            "such as x.transpose(0, 3, 1, 2) in NumPy"
        )
