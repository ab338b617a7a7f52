from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from cprjob_serving.hashes import Cells


def hashes(*texts: bytes) -> list[int]:
    found: list[int] = Cells.of_arrow(pa.array(texts, pa.binary())).hashes().tolist()
    return found


@settings(deadline=None)
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=20))
def test_a_hash_follows_from_the_bytes_alone(texts: list[bytes]) -> None:
    together = hashes(*texts)
    assert together == [hashes(text)[0] for text in texts]
    assert len(set(together)) == len(set(texts))


def test_a_part_of_an_array_is_read_from_its_own_place() -> None:
    part = pa.array([b"12", b"3", b"-45", b"", b"6"], pa.binary()).slice(2, 2)
    assert Cells.of_arrow(part).hashes().tolist() == hashes(b"-45", b"")


def test_columns_may_be_empty() -> None:
    assert hashes() == []
    assert len(set(hashes(b"", b""))) == 1
