"""Calls options that are dataclasses."""

import dataclasses


def called(option, *args, **given):
    """What an option gives: its fields are taken from `given`, and it is called with the rest."""
    names = {field.name for field in dataclasses.fields(option)}
    fields = {name: value for name, value in given.items() if name in names}
    rest = {name: value for name, value in given.items() if name not in names}
    return option(**fields)(*args, **rest)
