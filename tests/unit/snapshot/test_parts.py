"""Parts: how slots are split, and what a part's bytes are."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cpr_trainer.snapshot.parts import MIB, PartError, SlotRange, checksum, decode_part, encode_part, plan_parts

sizes = st.integers(0, 10**10)
widths = st.integers(1, 70_000).map(lambda floats: 4 * floats)


@given(rows=sizes, row_bytes=widths)
def test_parts_hold_every_slot_once_and_in_order(rows: int, row_bytes: int) -> None:
    # Only the first parts and the last: there are hundreds of thousands for the largest shards.
    parts = plan_parts(min(rows, 10**7), row_bytes)
    assert sum(part.rows for part in parts) == min(rows, 10**7)
    expected = 0
    for part in parts:
        assert part.first == expected
        assert part.rows > 0
        expected += part.rows


@given(rows=st.integers(1, 10**7), row_bytes=widths)
def test_parts_are_neither_too_large_nor_too_small(rows: int, row_bytes: int) -> None:
    parts = plan_parts(rows, row_bytes)
    for part in parts:
        assert part.rows * row_bytes <= max(64 * MIB, MIB + row_bytes)
    for part in parts[:-1]:
        assert part.rows * row_bytes >= min(MIB, 64 * MIB - row_bytes)
    if rows * row_bytes <= 32 * 64 * MIB:
        assert len(parts) <= 32


@pytest.mark.parametrize(
    ("rows", "row_bytes", "count", "largest"),
    [
        (0, 68, 0, 0),
        (1, 68, 1, 1),
        (15_000, 68, 1, 15_000),  # under 1 MiB: one part
        (32_000_000, 68, 33, 986_895),  # 2 GiB: parts of 64 MiB
        (3_200_000, 68, 32, 100_000),  # a 32nd
    ],
)
def test_plans(rows: int, row_bytes: int, count: int, largest: int) -> None:
    parts = plan_parts(rows, row_bytes)
    assert (len(parts), max((part.rows for part in parts), default=0)) == (count, largest)


def test_the_bytes_of_a_part_are_these() -> None:
    rows = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    data = encode_part(rows, torch.tensor([6.0, 7.0, 8.0]), SlotRange(1, 2))
    header = "4350525041525431 02000000 01000000 0100000000000000 0200000000000000"
    values = "00000040 00004040 00008040 0000a040 0000e040 00000041"
    assert data == bytes.fromhex(header + values)
    assert checksum(b"123456789") == 0xE3069283  # the check value of CRC-32C


@pytest.mark.parametrize("with_state", [True, False])
def test_a_part_comes_back_bit_by_bit(with_state: bool) -> None:  # noqa: FBT001 -- a parameter of the case
    rows = torch.randn(10, 3, generator=torch.Generator().manual_seed(1))
    rows[4, 0], rows[4, 1] = float("nan"), -0.0
    state = torch.rand(10) if with_state else None
    into, state_into = torch.zeros(10, 3), torch.zeros(10) if with_state else None
    for slots in (SlotRange(0, 4), SlotRange(4, 6)):
        decode_part(encode_part(rows, state, slots), slots, into, state_into)
    assert torch.equal(into.view(torch.int32), rows.view(torch.int32))
    if state is not None and state_into is not None:
        assert torch.equal(state_into, state)


@pytest.mark.parametrize(
    ("rows", "state", "slots"),
    [
        (torch.ones(4, 2), torch.ones(4), SlotRange(2, 2)),  # of other slots
        (torch.ones(4, 2), torch.ones(4), SlotRange(0, 3)),  # too few rows
        (torch.ones(4, 3), None, SlotRange(0, 2)),  # as many bytes, but another dimension and no state
    ],
)
def test_a_part_of_another_place_is_refused_and_changes_nothing(
    rows: torch.Tensor, state: torch.Tensor | None, slots: SlotRange
) -> None:
    part = encode_part(torch.zeros(4, 2), torch.zeros(4), SlotRange(0, 2))
    before = rows.clone()
    with pytest.raises(PartError):
        decode_part(part, slots, rows, state)
    assert torch.equal(rows, before)
