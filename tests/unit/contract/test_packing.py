"""Long descriptions of jobs, packed."""

from __future__ import annotations

import pytest

from cpr_contract.codec import LONGEST_PLAIN, ContractError, is_packed, pack, unpack

LONG = '{"a":"' + LONGEST_PLAIN * "x" + '"}'


def test_a_short_description_stays_as_it_is() -> None:
    short = LONG[:LONGEST_PLAIN]
    assert pack(short) == unpack(short) == short
    assert not is_packed(short)


def test_a_long_one_comes_back_as_it_was() -> None:
    packed = pack(LONG)
    assert is_packed(packed)
    assert len(packed) < len(LONG) // 10
    assert unpack(packed) == LONG


@pytest.mark.parametrize("cut", [6, 21, -4])
def test_a_damaged_one_is_refused(cut: int) -> None:
    with pytest.raises(ContractError, match="packed description"):
        unpack(pack(LONG)[:cut])


def test_one_that_is_no_text_of_ours_is_refused() -> None:
    with pytest.raises(ContractError, match="cannot be read"):
        unpack("zlib:?")
