"""Reads files of foreign origin in a process without rights: `python -m cpr_trainer.importing.isolated`.

The importing process has the store's credentials: it opens files, and passes their bytes to this one, which has no
credentials and gives up all rights to files, connections and processes before it reads. Answers are plain, an index as
JSON and the raw values of a tensor, and are checked against the index.

A request is its kind (1 byte), its length (8 bytes, little endian), and that many bytes. An answer is the length of a
JSON object, the object, and behind that of a tensor its values.
"""

from __future__ import annotations

import ctypes
import io
import os
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from typing import BinaryIO, cast

import torch
from torch import Tensor

from cpr_contract.codec import ContractError, from_json, to_json
from cpr_trainer.importing.checkpoint_index import IndexedTensor, read_index
from cpr_trainer.importing.pickles import PickleError
from cpr_trainer.importing.torch_index import View, read_views

_INDEX, _TENSOR, _VIEWS = b"I", b"T", b"V"
_REQUEST, _ANSWER = struct.Struct("<cQ"), struct.Struct("<Q")
#: An index of 200,000 parts has some 40 MB.
_MAX_ANSWER_BYTES = 1 << 30
#: landlock_create_ruleset and landlock_restrict_self have these numbers on every architecture.
_CREATE_RULESET, _RESTRICT_SELF, _NO_NEW_PRIVILEGES = 444, 446, 38
#: All thirteen rights of the first version of Landlock, from executing a file to making a link.
_FILE_RIGHTS = (1 << 13) - 1


class UnreadableError(Exception):
    """The bytes are damaged, or of another form."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The tensors of an index; or the type and shape of a tensor, followed by its values; or an error.

    `views` are the tensors of a file of `torch.save`.
    """

    tensors: tuple[IndexedTensor, ...] = ()
    views: tuple[View, ...] = ()
    dtype: str = ""
    shape: tuple[int, ...] = ()
    error: str = ""


class IsolatedReader:
    """The importing process's end of the two pipes. Errors are `UnreadableError`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def index(self, metadata: bytes) -> tuple[IndexedTensor, ...]:
        """Return the tensors in a checkpoint's metadata; names and numbers are foreign. Raises UnreadableError."""
        return self._request(_INDEX, metadata).tensors

    def views(self, pickled: bytes) -> tuple[View, ...]:
        """Return the tensors in the index of a file of `torch.save`; names and numbers are foreign, as above."""
        return self._request(_VIEWS, pickled).views

    def tensor(self, part: memoryview, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        """Return the tensor that `torch.save` wrote as `part`. Raises UnreadableError if it is not of that form."""
        head = self._request(_TENSOR, part)
        if (head.dtype, head.shape) != (_name(dtype), shape):
            raise UnreadableError(f"a part of it is {head.dtype} {list(head.shape)}, not {_name(dtype)} {list(shape)}")
        values = bytearray(torch.Size(shape).numel() * dtype.itemsize)
        self._receive(memoryview(values))
        return torch.frombuffer(values, dtype=dtype).view(shape) if values else torch.empty(shape, dtype=dtype)

    def _request(self, kind: bytes, content: bytes | memoryview) -> _Answer:
        try:
            requests = cast("BinaryIO", self._process.stdin)
            requests.write(_REQUEST.pack(kind, len(content)))
            requests.write(content)
            requests.flush()
        except OSError as error:
            raise self._ended() from error
        size = bytearray(_ANSWER.size)
        self._receive(memoryview(size))
        (length,) = _ANSWER.unpack(size)
        if length > _MAX_ANSWER_BYTES:
            raise UnreadableError(f"its index has {length} bytes")
        encoded = bytearray(length)
        self._receive(memoryview(encoded))
        try:
            answer = from_json(_Answer, bytes(encoded))
        except ContractError as error:
            raise UnreadableError(str(error)) from error
        if answer.error:
            raise UnreadableError(answer.error)
        return answer

    def _receive(self, into: memoryview) -> None:
        answers = cast("BufferedReader", self._process.stdout)
        while into:
            received = answers.readinto(into)
            if not received:
                raise self._ended()
            into = into[received:]

    def _ended(self) -> UnreadableError:
        return UnreadableError(f"the process that reads it ended (exit code {self._process.wait()})")


@contextmanager
def isolated_reader() -> Iterator[IsolatedReader]:
    """Start the process without rights, and end it. Its environment has the places of Python's packages only."""
    command = (sys.executable, "-s", "-P", "-m", "cpr_trainer.importing.isolated")
    with subprocess.Popen(  # noqa: S603 -- our own program
        command,
        env={"PYTHONPATH": os.pathsep.join(filter(os.path.isabs, sys.path))},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            yield IsolatedReader(process)
        finally:
            process.kill()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- The process without rights


def give_up_rights() -> None:
    """Drop the rights to open, change and delete files, to connect, and to start processes."""
    torch.set_num_threads(1)
    written = io.BytesIO()
    torch.save(torch.zeros(1), written)
    _tensor(written.getvalue())  # torch imports modules when it loads for the first time
    # All rights to files, and the right to trace other processes. Kernels before 5.13 have no Landlock.
    libc = ctypes.CDLL(None)
    rights = ctypes.c_uint64(_FILE_RIGHTS)
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(rights), ctypes.c_size_t(ctypes.sizeof(rights)), 0)
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if ruleset >= 0:
        libc.syscall(_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))


def _index(content: bytes) -> _Answer:
    try:
        return _Answer(read_index(content))
    except PickleError as error:
        return _Answer(error=str(error))


def _views(content: bytes) -> _Answer:
    try:
        return _Answer(views=read_views(content))
    except PickleError as error:
        return _Answer(error=str(error))


def _tensor(content: bytes) -> tuple[bytes | memoryview, _Answer]:
    try:
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if type(found) is not Tensor or found.layout is not torch.strided or found.is_quantized:
            return b"", _Answer(error=f"a part of it is a {type(found).__name__}, not a plain tensor")
        values = found.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    except Exception as error:  # noqa: BLE001 -- damaged bytes raise any error
        # torch's messages advise to load without `weights_only`.
        return b"", _Answer(error=f"a part of it is not a tensor as torch.save writes it ({type(error).__name__})")
    return values.data, _Answer(dtype=_name(found.dtype), shape=tuple(found.shape))


def main() -> None:
    """Give up all rights, then answer until the requests end."""
    give_up_rights()
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    with suppress(BrokenPipeError):
        while head := requests.read(_REQUEST.size):
            kind, length = _REQUEST.unpack(head)
            content = requests.read(length)
            if kind == _TENSOR:
                values, answer = _tensor(content)
            else:
                values, answer = b"", _index(content) if kind == _INDEX else _views(content)
            encoded = to_json(answer).encode()
            answers.write(_ANSWER.pack(len(encoded)))
            answers.write(encoded)
            answers.write(values)
            answers.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
