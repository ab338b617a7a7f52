"""Memory as bytes: flattened, sliced and checksummed without a copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from awscrt.checksums import crc32c

#: Any C-contiguous memory; what is not bytes is taken as its bytes.
Buffer = bytes | bytearray | memoryview

#: Memory is sent, received, written and checksummed in slices of this size: few enough to cost nothing, and short
#: enough that a slice is still in the cache when it is looked at again and the interpreter is never held for long.
SLICE_BYTES = 1 << 20


def flat(data: Buffer | Sequence[Buffer]) -> tuple[memoryview, ...]:
    """Return the buffers as one-dimensional views of bytes; empty ones are left out."""
    buffers = (data,) if isinstance(data, bytes | bytearray | memoryview) else data
    views = (memoryview(buffer) for buffer in buffers)
    return tuple(view.cast("B") for view in views if view.nbytes)


def size_of(views: Sequence[memoryview]) -> int:
    """Bytes in all views together."""
    return sum(view.nbytes for view in views)


def slices(views: Sequence[memoryview]) -> Iterator[memoryview]:
    """Cut flat views into slices of at most SLICE_BYTES."""
    for view in views:
        for first in range(0, len(view), SLICE_BYTES):
            yield view[first : first + SLICE_BYTES]


def checksum(data: Buffer | Sequence[Buffer]) -> int:
    """CRC-32C of the buffers' bytes, one after another, as manifests carry it."""
    crc = 0
    for piece in slices(flat(data)):
        crc = extended(crc, piece)
    return crc


def extended(crc: int, piece: memoryview) -> int:
    """CRC-32C of what `crc` is that of and the bytes of `piece` after it."""
    return int(crc32c(piece, crc))  # other threads run meanwhile
