"""Reference models, each trained in one process: jobs of several processes must equal them bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch

from cpr_contract.spec import JobSpec
from cpr_trainer import notebook
from cpr_trainer.notebook import Fitted
from processes.jobs import JOBS, PACKAGES

Reference = Callable[[str], tuple[JobSpec, Fitted]]


@pytest.fixture(scope="session", autouse=True)
def packages() -> Iterator[None]:
    """Make the jobs' networks and data importable, here and in the processes that are started.

    Sums are in the order of one thread, as in those processes.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        for package in PACKAGES:
            patch.syspath_prepend(str(package))
            patch.setenv("PYTHONPATH", str(package), prepend=":")
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Return, by the name of a job, the job and the model of one process, which is trained once."""

    @cache
    def trained(name: str) -> tuple[JobSpec, Fitted]:
        job = JOBS[name](tmp_path_factory.mktemp(name))
        return job, notebook.train(job, None, progress=False)

    return trained
