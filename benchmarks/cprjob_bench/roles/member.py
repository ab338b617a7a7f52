"""A member of a job with the bench's counters, and with ECRec's parity if the environment selects it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpr_contract import env
from cpr_contract.codec import pack, to_json
from cpr_contract.env import ROLE_SHARD
from cpr_trainer.exchange.frames import HEADER_BYTES, FrameWriter, Header
from cpr_trainer.exchange.ring import Block, Ring
from cpr_trainer.process import main as run_member
from cpr_trainer.runtime import read_job
from cprjob_bench.bench_documents import COUNTS_FILE, EAGER, Counts


def count(path: Path, role: str, log_bytes: int) -> None:
    """Count bytes to other members and in the log of pushes, in this process and in its forks, in the file `path`.

    log_bytes: the memory for pushes; 0: none. A frame counts when it is passed to its connection. Handshakes and
    heartbeats count, headers of the kernel do not.
    """
    counts = np.memmap(path, np.int64, "w+", shape=(len(Counts.FIELDS),))
    lock, add, take = threading.Lock(), FrameWriter.add, Ring.take

    def counted_add(writer: FrameWriter, header: Header, *payload: Any) -> None:
        with lock:
            counts[0] += HEADER_BYTES + header.payload_bytes
        add(writer, header, *payload)

    def counted_take(ring: Ring, size_bytes: int, step: int) -> Block | None:
        block = take(ring, size_bytes, step)
        counts[1] = int(ring.fill * log_bytes)
        return block

    FrameWriter.add = counted_add  # type: ignore[assignment,method-assign]
    Ring.take = counted_take  # type: ignore[assignment,method-assign]
    if role == ROLE_SHARD:
        _time_rebuild(counts)


def _time_rebuild(counts: NDArray[np.int64]) -> None:
    from cpr_trainer.shard.redundancy import Redundancy  # noqa: PLC0415 -- trainers do not load it

    rebuild = Redundancy.rebuild

    def timed_rebuild(redundancy: Redundancy, *arguments: Any) -> Any:
        began_s = thread_time()
        found = rebuild(redundancy, *arguments)
        counts[2] = int(1e6 * (thread_time() - began_s))
        return found

    Redundancy.rebuild = timed_rebuild  # type: ignore[assignment,method-assign]


def run(role: str, environ: Mapping[str, str]) -> int:
    """Run a trainer or a shard; return the exit code."""
    job = read_job(environ)
    if environ.get(EAGER):
        # ECRec has no replay.
        job = replace(job, replay_bytes=0)
        others = {name: value for name, value in environ.items() if name != env.SPEC_FILE}
        environ = {**others, env.SPEC: pack(to_json(job))}
        _use_eager_parity(role)
    count(Path(environ[COUNTS_FILE]), role, job.replay_bytes)
    return run_member([role], environ)


def _use_eager_parity(role: str) -> None:
    """Replace classes of the product by those of ECRec's parity, before the member's code is loaded."""
    if role == env.ROLE_TRAINER:
        from cpr_trainer.exchange import link_loop  # noqa: PLC0415
        from cprjob_bench.roles.eager import EagerLink  # noqa: PLC0415

        link_loop.Link = EagerLink  # type: ignore[attr-defined]
        return
    from cpr_trainer.shard import main, server  # noqa: PLC0415
    from cprjob_bench.roles.eager import EagerConnection, EagerRedundancy, EagerServer  # noqa: PLC0415

    main.Redundancy = EagerRedundancy  # type: ignore[assignment,attr-defined]
    main.Server = EagerServer  # type: ignore[assignment,attr-defined]
    server.Connection = EagerConnection  # type: ignore[misc]
