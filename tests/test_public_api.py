"""The public API is what its record says: nobody takes something away from users unnoticed."""

import difflib

from public_api import RECORD, lines

WHAT_TO_DO = """
Public API and its record differ: - is recorded, + is in the code. If you mean it, write the record
anew with `python tests/public_api.py`, add a line to CHANGELOG.md, and let what goes away or gets
another name warn for a version first: docs/public-api.md says how.
"""


def test_the_public_api_is_what_is_recorded():
    recorded = RECORD.read_text(encoding="utf-8").splitlines()
    found = [*difflib.unified_diff(recorded, lines(), lineterm="", n=0)][2:]
    changes = [line for line in found if line[:2] != "@@"]
    assert not changes, "\n".join([WHAT_TO_DO, *changes])
