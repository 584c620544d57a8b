"""Marks tests of the zoo as slow, except for a sample: README's test command runs the sample."""

from pathlib import Path

from sampling import ZOO

HERE = Path(__file__).parent
SAMPLE = {
    *ZOO,
    # LoRA; text, masks and users' files; a partition; colluding attackers; an audit; conformance.
    *("lora_sums", "shakespeare", "segmentation_folder", "leaf", "semantic", "collusion"),
    *("label_leakage", "judging"),
}
"""Tests by the ends of their files' names. They run always, as does a file that is named."""


def pytest_collection_modifyitems(session, items):
    for item in items:
        sampled = item.path.stem.removeprefix("test_") in SAMPLE
        if HERE in item.path.parents and not sampled and not session.isinitpath(item.path):
            item.add_marker("slow")
