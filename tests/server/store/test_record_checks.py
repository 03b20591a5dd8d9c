"""The names and values of records."""

import pytest
from tests.cases import each_case

from plait.errors import TooLarge
from plait.limits import Limits
from plait.store.record_checks import check_record
from plait.store.thread_rows import Record


@each_case(
    "record",
    [
        Record(1, "a", b""),  # type: ignore[arg-type]
        Record("values", b"a", b""),  # type: ignore[arg-type]
        Record("values", None, None),  # type: ignore[arg-type]
        Record("values", "a", "text"),  # type: ignore[arg-type]
        Record("values", "a", 1),  # type: ignore[arg-type]
        Record("values", "a", bytearray(b"")),  # type: ignore[arg-type]
    ],
)
def test_a_record_of_the_wrong_type_is_refused(record: Record) -> None:
    with pytest.raises(TypeError, match=r"of a record must be str|of the record 'a' of values must be bytes, not "):
        check_record(record, Limits())


@each_case(
    "record",
    [
        Record("", "a", b""),
        Record("Values", "a", b""),
        Record("1", "a", b""),
        Record("a" * 65, "a", b""),
        Record("a b", "a", b""),
        Record("values\n", "a", b""),
        Record("values", "", b""),
        Record("values", "é" * 257, b""),
        Record("values", "a\x00", b""),
        Record("values", "\x7f", b""),
        Record("values", "a\ud800", None),
    ],
)
def test_an_odd_name_of_a_record_is_refused(record: Record) -> None:
    with pytest.raises(ValueError, match=r"record"):
        check_record(record, Limits())


def test_names_and_values_up_to_the_limits_are_taken() -> None:
    limits = Limits(record=100)
    for record in (Record("a" * 64, "é" * 256, b"x" * 100), Record("a-b_1", "\u2028 /😀", None)):
        check_record(record, limits)
    with pytest.raises(TooLarge, match="101 bytes; the limit is 100"):
        check_record(Record("a", "b", b"x" * 101), limits)
