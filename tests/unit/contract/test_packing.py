"""Long descriptions of jobs, packed."""

from __future__ import annotations

import pytest

from cpr_contract.codec import MAX_PLAIN_LENGTH, ContractError, is_packed, pack, unpack

LONG = '{"a":"' + MAX_PLAIN_LENGTH * "x" + '"}'


def test_long_description_is_packed() -> None:
    short, packed = LONG[:MAX_PLAIN_LENGTH], pack(LONG)
    assert pack(short) == unpack(short) == short
    assert (is_packed(short), is_packed(packed), unpack(packed)) == (False, True, LONG)
    assert len(packed) < len(LONG) // 10


@pytest.mark.parametrize("text", [*(pack(LONG)[:cut] for cut in (6, 21, -4)), "zlib:?"])
def test_damaged_description_is_refused(text: str) -> None:
    with pytest.raises(ContractError, match=r"packed description|cannot be read"):
        unpack(text)
