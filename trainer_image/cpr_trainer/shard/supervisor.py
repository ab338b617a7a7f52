"""The first process of a shard's pod: it holds the tables' memory and the listening socket, and forks the server.

A server that is killed, crashes or hangs is replaced by another one that has all rows. If the cluster restarts
containers in their pod, the memory is a file that outlives the container, and the next supervisor takes it over.
"""

from __future__ import annotations

import logging
import socket
from functools import partial
from pathlib import Path
from time import monotonic

from cpr_contract import env
from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.memory import OwnMemory, SharedMemory
from cpr_trainer.history import store_output
from cpr_trainer.runtime import Environment, listen
from cpr_trainer.runtime.last_output import OutputRecorder, Tail
from cpr_trainer.runtime.supervision import UNUSABLE_MEMORY, Supervisor, end_pod
from cpr_trainer.shard.main import largest_bytes, serve
from cpr_trainer.shard.resume import ShardControlBlock

_LOG = logging.getLogger(__name__)


def run(environment: Environment) -> int:
    """Be a shard until its end; return the exit code. Raises TrainerError for what a person has to correct."""
    with listen(environment.address, environment.port_base + env.DATA_PORT) as listener:
        if environment.supervised:
            return _run_supervised(environment, listener)
        memory = OwnMemory()
        control_block = ShardControlBlock.new(memory, environment.job)
        control_block.begin_process()
        return serve(environment, control_block, memory, listener)


def _run_supervised(environment: Environment, listener: socket.socket) -> int:
    job, folder = environment.job, environment.memory_dir
    size_bytes = largest_bytes(job, lambda sizes, memory: Arena.empty(job, *sizes, memory=memory))
    shared = SharedMemory(size_bytes, None if folder is None else folder / "rows")
    control_block = control_block_of(job, shared, None if folder is None else environment.scratch_dir)
    if control_block is None:
        _LOG.error("%s: the pod ends", UNUSABLE_MEMORY)
        return end_pod(environment.termination_file, UNUSABLE_MEMORY)
    tail = Tail(None if folder is None else environment.scratch_dir / "last-output")
    recorder = OutputRecorder(tail, partial(store_output, environment, env.ROLE_SHARD))
    code = Supervisor(control_block, environment.termination_file, job.silence_s, recorder=recorder).run()
    if code is not None:
        return code
    memory = shared.view()
    return serve(environment, ShardControlBlock(memory, job), memory, listener)


def control_block_of(job: JobSpec, shared: SharedMemory, scratch: Path | None) -> ShardControlBlock | None:
    """Return the control block for a supervisor that starts, maybe that of an earlier one; None if it is unusable.

    scratch: the folder in which supervisors leave a mark; None where containers are not restarted.
    """
    if scratch is None or _is_first(scratch):
        return ShardControlBlock.new(shared.view(), job)
    control_block = ShardControlBlock(shared.view(), job)
    if not control_block.usable:
        return None
    control_block.take_over(monotonic())
    return control_block


def _is_first(scratch: Path) -> bool:
    """Return whether this is the pod's first supervisor. A machine that restarts loses the memory, not the disk."""
    try:
        (scratch / "keeper").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
