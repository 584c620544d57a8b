import pytest

from flfast.config.signature import read_signature
from flfast.state import options


@pytest.mark.parametrize(
    ("old", "new"),
    [("Fraction", "UpToOne"), ("Portion", "BelowOne"), ("Share", "PositiveUpToOne")],
)
def test_earlier_names_of_ranges_are_the_new_ones_with_a_warning(old, new):
    with pytest.warns(FutureWarning, match=rf"flfast\.state\.options\.{old} is {new} now"):
        assert getattr(options, old) is getattr(options, new)


def test_an_unknown_range_is_an_error():
    with pytest.raises(AttributeError, match="no attribute 'Sharee'"):
        _ = options.Sharee


def test_ranges_under_earlier_names_are_checked(tmp_path, monkeypatch):
    path = tmp_path / "own_option_of_ranges.py"
    path.write_text(
        "from flfast.state.options import Share\n\n\ndef own(*, mu: Share):\n    return mu\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(FutureWarning, match="Share is PositiveUpToOne now"):
        found = read_signature("own_option_of_ranges.own")
    assert found is not None
    assert found.parameters["mu"].annotation is options.PositiveUpToOne
