"""The job's description as text: plain JSON, or packed if that is long.

A packed one does not fit where a plain one was read, so it comes to pods in a file (`env.SPEC_FILE`).
"""

from __future__ import annotations

import base64
import binascii
import zlib

from cpr_contract.codec import ContractError

#: The longest that stays plain, in characters. A variable of a process holds at most 128 KiB.
LONGEST_PLAIN = 32 << 10
#: The longest text of a new job's description. A pod has it beside its roster, in annotations of 256 KiB together.
LONGEST = 88 << 10
#: What a description may grow by while its job goes on, as by the numbers of its members.
GROWTH = 4 << 10
#: The bytes that unpacking makes at most.
_LARGEST = 16 << 20
_PACKED = "zlib:"


def pack(text: str) -> str:
    """A description in plain JSON, packed if it is longer than `LONGEST_PLAIN`."""
    if len(text) <= LONGEST_PLAIN:
        return text
    return _PACKED + base64.b64encode(zlib.compress(text.encode())).decode()


def is_packed(text: str) -> bool:
    """Whether `pack` made this text shorter."""
    return text.startswith(_PACKED)


def unpack(text: str) -> str:
    """A description in plain JSON. Raises `ContractError` if it is packed and damaged."""
    if not is_packed(text):
        return text
    try:
        data = base64.b64decode(text.removeprefix(_PACKED), validate=True)
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(data, _LARGEST)
        if not unpacker.eof:
            raise ContractError(f"a packed description ends too early, or has more than {_LARGEST} bytes")
        return plain.decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError) as error:
        raise ContractError(f"a packed description cannot be read: {error}") from error
