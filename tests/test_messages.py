"""The words of all messages stand in one record."""

from messages import RECORD, lines


def test_the_record_has_every_message_word_for_word():
    """`python tests/messages.py` writes it anew; its difference shows what was changed or lost."""
    assert lines() == RECORD.read_text(encoding="utf-8").splitlines()
