"""Shared parts of the baselines: a job's batches and trace, and the start of several processes on one machine.

A baseline trains the job in CPR_SPEC and traces its steps (see `cpr_contract.trace`); `cprjob bench train --peer`
measures it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor

from cpr_contract.spec import JobSpec
from cpr_contract.trace import STEP_TRACE
from cpr_trainer.data.loader import Loader
from cpr_trainer.data.open import files_of, open_dataset
from cpr_trainer.data.order import BatchOrder
from cpr_trainer.runtime import Trace, optional_path

_LOOPBACK = "lo"


def join(processes: int) -> int:
    """Return the rank of this process among `processes`. Rank 0 is the first, and starts the others.

    torch reads the environment, as under torchrun, which would be an additional process.
    """
    if "RANK" not in os.environ:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": "0", "WORLD_SIZE": str(processes)}
        os.environ |= {"GLOO_SOCKET_IFNAME": _LOOPBACK, "TP_SOCKET_IFNAME": _LOOPBACK}
        for rank in range(1, processes):
            # A new process ends with this one: the bench kills the whole process group.
            subprocess.Popen((sys.executable, *sys.argv), env={**os.environ, "RANK": str(rank)})  # noqa: S603
    return int(os.environ["RANK"])


def open_batches(job: JobSpec, rank: int, trainers: int) -> Loader:
    """Return the slices of trainer `rank` of `trainers` of all batches, prepared on other threads."""
    dataset = open_dataset(job.data, job.model, files_of(job))
    return Loader(dataset, BatchOrder.of(job.data, dataset.layout), rank=rank, trainers=trainers, first_step=1)


def open_trace(rank: int) -> Trace:
    """Return the trace for the bench on rank 0, on other ranks a trace without a file."""
    return Trace(optional_path(os.environ, STEP_TRACE) if rank == 0 else None)


def save(parameters: Tensor, rank: int) -> None:
    """Write a run's final dense parameters, float32 [p], to the file that the last argument names, if any."""
    if rank == 0 and (path := Path(sys.argv[-1])).suffix == ".pt":
        torch.save(parameters, path)
