"""The first process of a shard's pod: it holds the memory of the tables and the socket, and forks the server.

So a server that is killed, crashes or hangs is followed by another one that has all rows.
"""

from __future__ import annotations

import socket

from cpr_contract import env
from cpr_trainer.runtime import Environment
from cpr_trainer.runtime.keeper import Keeper
from cpr_trainer.shard.kept import Page
from cpr_trainer.shard.main import largest_bytes, serve
from cpr_trainer.shard.server import listen
from cpr_trainer.tables.arena import Arena
from cpr_trainer.tables.memory import OwnMemory, SharedMemory


def run(environment: Environment) -> int:
    """Be a shard until the end; return the exit code. Raises TrainerError for what only a person can mend."""
    with listen((environment.address, environment.port_base + env.DATA_PORT)) as listener:
        if environment.keeper:
            return _run_kept(environment, listener)
        memory = OwnMemory()
        page = Page.new(memory, environment.job)
        page.begin_life()
        return serve(environment, page, memory, listener)


def _run_kept(environment: Environment, listener: socket.socket) -> int:
    job = environment.job
    shared = SharedMemory(largest_bytes(job, lambda sizes, memory: Arena.empty(job, *sizes, memory=memory)))
    code = Keeper(Page.new(shared.view(), job), environment.termination_file, job.silence_s).keep()
    if code is not None:
        return code
    memory = shared.view()
    return serve(environment, Page(memory, job), memory, listener)
