"""Reads data of a program as `flfast.run` does."""

from flfast.api import own_data
from flfast.api.arguments import Arguments


def read_data(data, test_data=None, *, task="classification", **given):
    """The examples of the arguments `data=`, `test_data=`, `target=`, `client=`, `labels=`."""
    return own_data.read_data(Arguments(data, test_data, **given), task)
