from __future__ import annotations

from decimal import Decimal

import pytest

from halfbyte.planning.quantities import (
    describe_bytes,
    format_bytes,
    format_millis,
    parse_bytes,
    parse_millis,
    parse_quantity,
    ratio,
    round_up,
)

QUANTITIES = {
    "500m": "0.5",
    "4": "4",
    "2Gi": "2147483648",
    "1.5Gi": "1610612736",
    "16G": "16000000000",
    "1e3": "1000",
    "12E6": "12000000",
    "1E": "1000000000000000000",
    "1Ei": "1152921504606846976",
    "100n": "1e-7",
    "3u": "0.000003",
    "+1": "1",
    "-1Ki": "-1024",
    ".5": "0.5",
    "5.": "5",
}


@pytest.mark.parametrize(("text", "value"), QUANTITIES.items())
def test_quantities_that_the_api_server_stores_are_read(text: str, value: str) -> None:
    assert parse_quantity(text) == Decimal(value)


def test_numbers_are_quantities_too() -> None:
    assert parse_quantity(4) == 4
    assert parse_quantity(0.5) == Decimal("0.5")


@pytest.mark.parametrize("text", ["", "lots", "1 Gi", "1GiB", "Gi", "--1", "1e"])
def test_others_are_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity"):
        parse_quantity(text)


def test_parts_of_a_unit_round_up() -> None:
    assert parse_bytes("0.1") == 1
    assert parse_millis("0.0001") == 1
    assert parse_millis("1500m") == 1500


def test_bytes_are_written_as_quantities_that_read_back() -> None:
    assert format_bytes(2 * 1024**3) == "2Gi"
    assert format_bytes(4000 * 1024**3) == "4000Gi"
    assert format_bytes(1) == "1Mi"
    assert format_bytes(2300 * 1024**2) == "2300Mi"
    assert format_bytes(0) == "0Mi"
    for count in (1, 10**6, 10**9, 3 * 1024**3):
        assert parse_bytes(format_bytes(count)) >= count


def test_bytes_in_sentences_have_three_digits() -> None:
    assert describe_bytes(114_034_232) == "109 MiB"
    assert describe_bytes(4_509_715_660) == "4.2 GiB"
    assert describe_bytes(1023 * 1024**2) == "1023 MiB"
    assert describe_bytes(2048) == "2 KiB"
    assert describe_bytes(12) == "12 bytes"


def test_small_things() -> None:
    assert format_millis(250) == "250m"
    assert format_millis(4000) == "4"
    assert round_up(101, 100) == 200
    assert round_up(100, 100) == 100
    assert ratio(42, 100) == "0.42"
    assert ratio(1, 0) == "0.00"
