"""Warnings of settings that turn an algorithm into a simpler one."""

import logging

log = logging.getLogger(__name__)


def degenerate(condition: bool, message: str) -> None:  # noqa: FBT001 - reads like assert
    """Log a warning if a setting makes an algorithm another one, such as FedAvg.

    The message names key, value and the other algorithm.
    """
    if condition:
        log.warning("%s", message)
