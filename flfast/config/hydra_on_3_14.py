"""Lets Hydra 1.3 start on Python 3.14, whose argparse refuses a help that is no string."""

import argparse
import sys


def install() -> None:
    """Let argparse check only a help that is a string (Hydra's issue 3121)."""
    if sys.version_info < (3, 14):
        return
    check = argparse.ArgumentParser._check_help  # noqa: SLF001
    argparse.ArgumentParser._check_help = lambda parser, action: (  # noqa: SLF001
        check(parser, action) if isinstance(action.help, str) else None
    )
