"""The end of a stream, in memory and in a file that outlives its container."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpr_contract.history import OUTPUT_BYTES
from cpr_trainer.runtime.last_output import Tail

LINE = b"0123456789abcde\n"


def test_short_output_is_whole() -> None:
    tail = Tail()
    tail.append(b"one\n")
    tail.append(b"two\n")
    assert (tail.take(), tail.take()) == (b"one\ntwo\n", b"")


@pytest.mark.parametrize("extra", [b"x", b"x" * 4095, LINE * 100], ids=["a byte", "a chunk", "lines"])
def test_long_output_loses_its_oldest_whole_lines(extra: bytes) -> None:
    tail = Tail()
    written = b""
    for piece in (*[LINE * 256] * (OUTPUT_BYTES // len(LINE) // 256), extra, b"\nend\n"):
        tail.append(piece)
        written += piece
    assert tail.take() == written[-OUTPUT_BYTES:].partition(b"\n")[2]


def test_next_container_takes_over_the_output_of_the_last(tmp_path: Path) -> None:
    Tail(tmp_path / "output").append(b"before\n")
    tail = Tail(tmp_path / "output")
    assert tail.take() == b"before\n"
    tail.append(b"after\n")
    assert Tail(tmp_path / "output").take() == b"after\n"


def test_output_without_a_file_that_can_be_written_is_in_memory(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "missing" / "output")
    tail.append(b"one\n")
    assert tail.take() == b"one\n"
