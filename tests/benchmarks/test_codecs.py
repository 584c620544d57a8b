"""The table of docs/compression.md has what the command measures."""

import re

import pytest

from benchmarks.codecs import MESSAGES, compression, measure


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_have_the_bytes_of_the_table(root, message):
    num_bytes, ms = measure(message, tries=1)
    text = (root / "docs" / "compression.md").read_text(encoding="utf-8")
    words = message.replace(" ", " compression.")
    assert re.search(rf"^\| `{words}` \|.*\| {num_bytes:,} \| [\d.]+ \|$", text, re.MULTILINE)
    assert ms > 0


def test_settings_follow_the_name():
    assert compression("quantize downloads=true").downloads
    assert not compression("quantize").downloads
