"""The first process of a trainer's pod: it loads all code, and forks the process that trains.

A trainer that is killed, crashes or hangs is replaced by another process, which continues after the last complete step
with the same bits. Without lockstep there is no such step, and the pod ends with the trainer.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import partial

import torch

from cpr_contract import env
from cpr_trainer.embedding.memory import ResumeFile
from cpr_trainer.history import store_output
from cpr_trainer.runtime import Environment
from cpr_trainer.runtime.last_output import OutputRecorder, Tail
from cpr_trainer.runtime.supervision import Supervisor, can_fork, exit_with_parent
from cpr_trainer.trainer.main import run as train
from cpr_trainer.trainer.resume import TrainerControlBlock

_LOG = logging.getLogger(__name__)


def run(environment: Environment, threads: int) -> int:
    """Run a trainer that computes with `threads` threads to its end; return the exit code.

    Raises TrainerError for problems that a person has to correct.
    """
    job = environment.job
    control_block: TrainerControlBlock | None = None
    if environment.resume_file is not None:
        control_block = TrainerControlBlock(ResumeFile(environment.resume_file), job)
        exit_with_parent(control_block.supervisor)
    elif environment.supervised and job.lockstep:
        control_block = new = TrainerControlBlock.new(job)
        recorder = OutputRecorder(Tail(), partial(store_output, environment, env.ROLE_TRAINER))
        code = Supervisor(new, environment.termination_file, job.silence_s, lambda: start(new), recorder).run()
        if code is not None:
            return code
    torch.set_num_threads(threads)  # starts threads, so not in a supervisor
    return train(environment, control_block)


def start(control_block: TrainerControlBlock) -> int:
    """Start a process; return its pid, and 0 in the process itself. It is forked if that is safe.

    A fork can use neither the state of other threads nor that of a device.
    """
    if can_fork() and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return os.fork()
    _LOG.warning("the supervisor has threads, or uses a device: the process loads its code itself")
    os.set_inheritable(control_block.file.descriptor, True)  # noqa: FBT003 -- the standard library's argument
    variables = os.environ | {env.KEPT_FILE: str(control_block.file.descriptor)}
    return os.posix_spawn(sys.executable, (sys.executable, "-m", "cpr_trainer", env.ROLE_TRAINER), variables)
