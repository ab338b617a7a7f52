"""The first process of a shard's pod: it holds the memory of the tables and the socket, and forks the server.

So a server that is killed, crashes or hangs is followed by another one that has all rows. Where the cluster begins a
container again in its pod, the memory is a file that outlives the container, and the next supervisor takes it over.
"""

from __future__ import annotations

import logging
import socket
from pathlib import Path
from time import monotonic

from cpr_contract import env
from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.arena import Arena
from cpr_trainer.embedding.memory import OwnMemory, SharedMemory
from cpr_trainer.runtime import Environment, listen
from cpr_trainer.runtime.supervision import UNUSABLE_MEMORY, Supervisor, give_up
from cpr_trainer.shard.main import largest_bytes, serve
from cpr_trainer.shard.resume import Page

_LOG = logging.getLogger(__name__)


def run(environment: Environment) -> int:
    """Be a shard until the end; return the exit code. Raises TrainerError for what only a person can mend."""
    with listen(environment.address, environment.port_base + env.DATA_PORT) as listener:
        if environment.supervised:
            return _run_kept(environment, listener)
        memory = OwnMemory()
        page = Page.new(memory, environment.job)
        page.begin_process()
        return serve(environment, page, memory, listener)


def _run_kept(environment: Environment, listener: socket.socket) -> int:
    job, folder = environment.job, environment.memory_dir
    size_bytes = largest_bytes(job, lambda sizes, memory: Arena.empty(job, *sizes, memory=memory))
    shared = SharedMemory(size_bytes, None if folder is None else folder / "rows")
    page = control_block_of(job, shared, None if folder is None else environment.scratch_dir)
    if page is None:
        _LOG.error("%s: the pod is given up", UNUSABLE_MEMORY)
        return give_up(environment.termination_file, UNUSABLE_MEMORY)
    code = Supervisor(page, environment.termination_file, job.silence_s).run()
    if code is not None:
        return code
    memory = shared.view()
    return serve(environment, Page(memory, job), memory, listener)


def control_block_of(job: JobSpec, shared: SharedMemory, scratch: Path | None) -> Page | None:
    """Return the control block of the shard's memory, which an earlier supervisor may have left; None if it is unfit.

    scratch: where supervisors leave a mark; None where none ever comes after another.
    """
    if scratch is None or _is_first(scratch):
        return Page.new(shared.view(), job)
    page = Page(shared.view(), job)
    if not page.usable:
        return None
    page.take_over(monotonic())
    return page


def _is_first(scratch: Path) -> bool:
    """Whether this is the pod's first supervisor. A machine that restarts has lost the memory, but not its disk."""
    try:
        (scratch / "keeper").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
