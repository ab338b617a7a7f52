from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpr_trainer.data.cells import Cells

INTEGER = re.compile(rb"-?[0-9]+")


def cells(*texts: bytes) -> Cells:
    return Cells.of_arrow(pa.array(texts, pa.binary()))


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20) | st.from_regex(rb"\A-?[0-9]{0,20}\Z"), min_size=1, max_size=20))
def test_integers_are_what_a_pattern_says(texts: list[bytes]) -> None:
    values, valid = cells(*texts).integers()
    for text, value, good in zip(texts, values.tolist(), valid.tolist(), strict=True):
        assert good == (text == b"" or (len(text) <= 18 and INTEGER.fullmatch(text) is not None))
        assert value == (int(text) if good and text else 0)


@pytest.mark.parametrize(
    "text", [b"+5", b" 5", b"5 ", b"0x1F", b"-", b"--5", b"1.0", b"1:", b"1/", b"1e3", b"9" * 19, b"\xd9\xa3"]
)
def test_what_is_no_integer(text: bytes) -> None:
    assert cells(b"7", text, b"-3").integers()[1].tolist() == [True, False, True]


@settings(deadline=None)
@given(st.lists(st.sampled_from([b"0", b"1", b"", b"2", b"00", b"01", b"-", b"10", b" ", b"\xff"]), min_size=1))
def test_flags_are_0_or_1(texts: list[bytes]) -> None:
    values, valid = cells(*texts).flags()
    assert valid.tolist() == [text in (b"0", b"1") for text in texts]
    assert values[valid].tolist() == [int(text) for text in texts if text in (b"0", b"1")]


def test_a_part_of_an_array_is_read_from_its_own_place() -> None:
    part = Cells.of_arrow(pa.array([b"12", b"3", b"-45", b"", b"6"], pa.binary()).slice(2, 2))
    assert part.integers()[0].tolist() == [-45, 0]
    assert [part.text(0), part.text(1)] == ["-45", ""]


def test_columns_may_be_empty() -> None:
    for column in (cells(), cells(b""), cells(b"", b"")):
        assert column.integers()[1].all()
        assert not column.flags()[1].any()
        assert len(np.unique(column.hashes())) <= 1


def test_text_for_messages_is_short_and_printable() -> None:
    assert cells(b"a" * 100).text(0) == "a" * 40
    assert cells(b"\xff\x00").text(0) == "\\xff\x00"
