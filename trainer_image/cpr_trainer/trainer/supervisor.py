"""The first process of a trainer's pod: it has loaded all code, and forks the process that trains.

So a trainer that is killed, crashes or hangs is followed by another one that goes on after the last complete step, with
the same bits. Without lockstep there is no such step, and a trainer's death is that of its pod.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import torch

from cpr_contract import env
from cpr_trainer.embedding.memory import ResumeFile
from cpr_trainer.runtime import Environment
from cpr_trainer.runtime.supervision import Supervisor, exit_with_parent
from cpr_trainer.trainer.main import run as train
from cpr_trainer.trainer.page import ResumeHeader

_LOG = logging.getLogger(__name__)


def run(environment: Environment, threads: int) -> int:
    """Be a trainer that computes with so many threads, until the end; return the exit code.

    Raises TrainerError for what only a person can mend.
    """
    header: ResumeHeader | None = None
    if environment.resume_file is not None:
        header = ResumeHeader(ResumeFile(environment.resume_file), environment.job)
        exit_with_parent(header.supervisor)
    elif environment.supervised and environment.job.lockstep:
        header = made = ResumeHeader.new(environment.job)
        job = environment.job
        code = Supervisor(header, environment.termination_file, job.silence_s, lambda: begin(made)).run()
        if code is not None:
            return code
    torch.set_num_threads(threads)  # not in a supervisor: it starts threads
    return train(environment, header)


def begin(header: ResumeHeader) -> int:
    """Begin a process: return its pid, and in itself 0. What threads or a device's driver hold, no fork can use."""
    if may_fork():
        return os.fork()
    _LOG.warning("the supervisor has threads, or has begun to use a device: the process loads its code itself")
    os.set_inheritable(header.file.descriptor, True)  # noqa: FBT003 -- the standard library's argument
    variables = os.environ | {env.KEPT_FILE: str(header.file.descriptor)}
    return os.posix_spawn(sys.executable, (sys.executable, "-m", "cpr_trainer", env.ROLE_TRAINER), variables)


def may_fork() -> bool:
    """Whether this process has one thread, and no device was used in it."""
    return len(list(Path("/proc/self/task").iterdir())) == 1 and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
