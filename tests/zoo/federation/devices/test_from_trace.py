"""Devices from a CSV file."""

import csv

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flfast.federation.devices.device import DAY, Devices
from flfast.zoo.federation.devices.from_trace import from_trace


@pytest.fixture
def described(tmp_path):
    """Devices of clients from a file with some text."""

    def described(text, clients, seed=0):
        path = tmp_path / "trace.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return from_trace(path=str(path))(np.array(clients), seed=seed)

    return described


def test_missing_columns_are_ideal(described):
    devices = described("\ufeffper_example, up\r\n0.5,inf\r\n\r\n 0.25 ,1e3\r\n", [1, 0])
    assert devices.per_example.tolist() == [0.25, 0.5]
    assert devices.up.tolist() == [1000, np.inf]
    assert devices.down.tolist() == [np.inf, np.inf]
    assert devices.available.tolist() == [1, 1]
    for field in (devices.fixed, devices.begins, devices.hazard):
        assert field.tolist() == [0, 0]


def test_rows_name_their_clients_in_any_order(described):
    devices = described("fixed,client\n1,7\n2,3\n3,5\n", [3, 5, 7])
    assert devices.fixed.tolist() == [2, 3, 1]


def test_clients_without_a_row_have_that_of_another(described):
    """Each row as often as the others, by seed and client."""
    text = "client,fixed,hazard\n5,1,0.1\n6,2,0.2\n8,3,0.3\n9,4,0.4\n"
    clients = np.arange(10, 10_010)
    devices = described(text, clients)
    np.testing.assert_allclose(devices.hazard, devices.fixed / 10)
    _, times = np.unique(devices.fixed, return_counts=True)
    # Binomial: the standard deviation is 43.
    assert np.abs(times - 2500).max() < 200
    assert (described(text, clients, seed=1).fixed != devices.fixed).any()
    assert described(text, [5, 6, 8, 9], seed=1).fixed.tolist() == [1, 2, 3, 4]


SECONDS = st.floats(0, 1e18)
BANDWIDTHS = st.floats(1e-6, 1e18) | st.just(np.inf)
ROWS = st.tuples(
    *(SECONDS, SECONDS, BANDWIDTHS, BANDWIDTHS),
    *(st.floats(0.001, 1), st.floats(0, DAY, exclude_max=True), SECONDS),
)


@given(st.dictionaries(st.integers(0, 10**9 - 1), ROWS, min_size=1, max_size=8))
def test_what_is_written_is_read(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", *Devices._fields])
        writer.writerows([client, *row] for client, row in written.items())
    devices = from_trace(path=str(path))(np.array([*written]), seed=0)
    np.testing.assert_array_equal(np.stack(devices, axis=1), [*written.values()])


def test_the_file_is_read_once(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("fixed\n3\n")
    model = from_trace(path=str(path))
    path.unlink()
    assert model(np.array([0]), seed=0).fixed.tolist() == [3]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: is empty"),
        ("fixed\n", "line 1: is the last"),
        ("client,latency\n0,1\n", "line 1: has a column latency; allowed: .* client, fixed"),
        ("0,1\n", "line 1: has a column 0; allowed: a header with"),
        ("up,up\n1,2\n", "line 1: has 2 columns up; allowed: one"),
        ("client,up\n0,1\n\n0,2\n", "line 4: client=0 is already in line 2; allowed: a row for"),
        ("client\n-1\n", "line 2: client=-1; allowed: an integer >= 0"),
        ("fixed\n1\n-1\n", "line 3: fixed=-1; allowed: a number >= 0"),
        ("fixed\ninf\n", "line 2: fixed=inf; allowed: a number >= 0 and <= 1e18"),
        ("per_example\nnan\n", "line 2: per_example=nan; allowed"),
        ("per_example\n1_0\n", "line 2: per_example=1_0; allowed"),
        ("per_example\n\uff11\n", "line 2: per_example=\uff11; allowed"),
        ("fixed,up\n1,\n", "line 2: up=; allowed: a number >= 1e-06, or inf"),
        ("down\n0\n", "line 2: down=0; allowed: a number >= 1e-06, or inf"),
        ("available\n0\n", r"line 2: available=0; allowed: a number in \[0.001, 1\]"),
        ("begins\n86400\n", r"line 2: begins=86400; allowed: a number in \[0, 86400\)"),
        ("hazard\nx\n", "line 2: hazard=x; allowed"),
        ("fixed,up\n1\n", "line 2: has 1 values for 2 columns; allowed"),
        ('fixed,up\n1,"2\n2,3\n', "line 3: unexpected end of data; allowed: rows of a CSV"),
        (b"fixed\n1\n\xff\n", "line 3: is not UTF-8"),
    ],
)  # fmt: skip
def test_errors_name_file_line_and_what_is_allowed(described, text, message):
    with pytest.raises(ValueError, match=rf"devices\.path=.*trace\.csv, {message}"):
        described(text, [0])


def test_a_file_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"devices\.path=.*nope\.csv: No such file"):
        from_trace(path=str(tmp_path / "nope.csv"))
