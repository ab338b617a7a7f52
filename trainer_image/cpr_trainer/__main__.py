"""`python -m cpr_trainer ROLE`: one process of a job."""

import logging
import os
import sys
from typing import NoReturn

# Read when torch is loaded: waiting threads sleep. Spinning ones would take processors from other pods.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Read when numpy and pyarrow are loaded, which otherwise start threads: a supervisor forks, so it has one thread.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")

from cpr_trainer.process import main


def leave(code: int) -> NoReturn:
    """End the process at once: a thread of an abandoned collective could delay a normal exit."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:], os.environ))
