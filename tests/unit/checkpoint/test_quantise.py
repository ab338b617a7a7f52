from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from cpr_contract.choices import Bits
from cpr_trainer.checkpoint.format.quantise import decode_rows, encode_rows, pack, packed_bytes, unpack
from cpr_trainer.errors import DivergedError

Floats = NDArray[np.float32]

FEW_BITS: tuple[Bits, ...] = (4, 3, 2)
ALL_BITS: tuple[Bits, ...] = (32, 8, *FEW_BITS)

#: Values as training makes them, and as it should not: huge, too small to be normal, far from 0 for their span, equal.
SPREADS = st.one_of(
    st.floats(-1, 1, width=32),
    st.floats(-(2.0**126), 2.0**126, width=32, allow_subnormal=True),
    st.floats(-(2.0**-130), 2.0**-130, width=32, allow_subnormal=True),
    st.floats(1, 1 + 2.0**-18, width=32),
    st.just(0.25),
)
ROWS = st.one_of(SPREADS, st.just(None)).flatmap(
    lambda fill: hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 37)),
        elements=st.floats(-1, 1, width=32) if fill is None else st.one_of(st.just(fill), SPREADS),
    )
)


def there_and_back(rows: Floats, bits: Bits) -> Floats:
    return decode_rows(encode_rows(rows, bits), rows.shape[1], bits)


def rounded_to_full_range(rows: Floats, bits: int) -> NDArray[np.float64]:
    """Quantise rows by minimum, maximum and evenly spaced levels, in doubles."""
    exact = rows.astype(np.float64)
    low, high = exact.min(axis=1, keepdims=True), exact.max(axis=1, keepdims=True)
    span = np.where(high > low, high - low, 1)
    levels = (1 << bits) - 1
    rounded: NDArray[np.float64] = low + np.rint((exact - low) / span * levels) * span / levels
    return rounded


def squared_error(found: NDArray[np.floating], rows: Floats) -> NDArray[np.float64]:
    errors: NDArray[np.float64] = np.square(found.astype(np.float64) - rows).sum(axis=1)
    return errors


def last_place(rows: Floats) -> NDArray[np.float64]:
    """The spacing of floats where each row is largest, [n, 1]."""
    spacing: NDArray[np.float64] = np.spacing(np.abs(rows).max(axis=1, keepdims=True)).astype(np.float64)
    return spacing


@pytest.mark.parametrize(
    ("bits", "values", "expected"),
    [
        (32, [1, 2, 3, 4], "0000803f 00000040 00004040 00008040"),
        (8, [1, 2, 3, 4], "0000803f 00008040 0055aaff"),
        (4, [1, 2, 3, 4], "0000803f 00008040 50fa"),
        (3, [1, 8, 2, 7, 3], "0000803f 00000041 782c"),
        (2, [1, 2, 3, 4], "0000803f 00008040 e4"),
    ],
)
def test_records_never_change(bits: Bits, values: list[float], expected: str) -> None:
    rows = np.array([values], np.float32)
    records = np.frombuffer(bytes.fromhex(expected), np.uint8)[np.newaxis]
    assert encode_rows(rows, bits).tolist() == records.tolist()
    assert decode_rows(records, len(values), bits).tolist() == rows.tolist()


def test_32_bits_keep_everything() -> None:
    rows = np.array([[np.nan, np.inf, -0.0, 1e-45], [1, -np.inf, 3.4e38, 0]], np.float32)
    assert there_and_back(rows, 32).tobytes() == rows.tobytes()


@settings(deadline=None, max_examples=100)
@given(rows=ROWS)
def test_with_8_bits_no_value_is_off_by_more_than_half_a_step(rows: Floats) -> None:
    exact = rows.astype(np.float64)
    step = (exact.max(axis=1, keepdims=True) - exact.min(axis=1, keepdims=True)) / 255
    off = np.abs(there_and_back(rows, 8) - exact)
    assert (off <= step / 2 * (1 + 1e-4) + last_place(rows)).all()


@pytest.mark.parametrize("bits", FEW_BITS)
@settings(deadline=None, max_examples=100)
@given(rows=ROWS)
def test_the_search_is_never_worse_than_the_full_range(bits: Bits, rows: Floats) -> None:
    plain = np.sqrt(squared_error(rounded_to_full_range(rows, bits), rows))
    rounding = np.sqrt(rows.shape[1]) * 2 * last_place(rows)[:, 0]
    found = np.sqrt(squared_error(there_and_back(rows, bits), rows))
    assert (found <= plain * (1 + 1e-4) + rounding).all()


@pytest.mark.parametrize("bits", ALL_BITS)
@settings(deadline=None, max_examples=100)
@given(rows=ROWS)
def test_decoded_values_are_quantised_without_change(bits: Bits, rows: Floats) -> None:
    once = there_and_back(rows, bits)
    assert there_and_back(once, bits).tobytes() == once.tobytes()


@pytest.mark.parametrize("bits", ALL_BITS)
@settings(deadline=None)
@given(value=st.floats(-(2.0**126), 2.0**126, width=32, allow_subnormal=True), dim=st.integers(1, 20))
def test_a_constant_row_is_exact(bits: Bits, value: float, dim: int) -> None:
    rows = np.full((2, dim), value, np.float32)
    assert np.array_equal(there_and_back(rows, bits), rows)


@pytest.mark.parametrize(("bits", "ratio"), [(4, 0.90), (3, 0.85), (2, 0.70)])
def test_search_loses_less_than_the_full_range(bits: Bits, ratio: float) -> None:
    rows = np.random.default_rng(1).normal(size=(30, 16)).astype(np.float32)
    plain = squared_error(rounded_to_full_range(rows, bits), rows).sum()
    found = squared_error(there_and_back(rows, bits), rows).sum()
    assert found < ratio * plain


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("bits", [8, *FEW_BITS])
def test_values_beyond_the_range_of_fewer_bits_are_refused(bits: Bits, bad: float) -> None:
    rows = np.zeros((70_000, 2), np.float32)
    rows[65_432, 1] = bad
    with pytest.raises(DivergedError, match=r"65432.*quantisation.mode Exact"):
        encode_rows(rows, bits)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8])
@settings(deadline=None)
@given(data=st.data(), dim=st.integers(1, 40))
def test_codes_are_packed_bit_after_bit(bits: int, data: st.DataObject, dim: int) -> None:
    codes = data.draw(hnp.arrays(np.uint8, (3, dim), elements=st.integers(0, 2**bits - 1)))
    packed = pack(codes, bits)
    assert packed.shape == (3, packed_bytes(dim, bits))
    for row, found in zip(codes.tolist(), packed, strict=True):
        number = sum(code << (bits * place) for place, code in enumerate(row))
        assert found.tobytes() == number.to_bytes(-(-dim * bits // 8), "little")
    assert unpack(packed, dim, bits).tolist() == codes.tolist()
