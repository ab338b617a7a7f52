"""`python -m cpr_trainer ROLE`: one process of a job."""

import logging
import os
import sys
from typing import NoReturn

# Read when torch is loaded: its threads sleep while they wait. Spinning ones take the processors from the other pods.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Read when numpy and pyarrow are loaded, which start threads otherwise: a supervisor forks, and has one thread.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")

from cpr_trainer.process import main


def leave(code: int) -> NoReturn:
    """End the process. A collective that was left behind may still hold a thread, which must not hold it."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:], os.environ))
