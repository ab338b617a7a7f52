"""`python -m cpr_trainer trainer|shard|export|experiment`: one process of a job."""

import logging
import os
import sys

# Read when torch is loaded: its threads sleep while they wait. Spinning ones take the processors from the other pods.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Read when numpy and pyarrow are loaded, which start threads otherwise: a keeper forks, and has one thread.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")

from cpr_trainer.process import main

if __name__ == "__main__":
    code = main(sys.argv[1:], os.environ)
    logging.shutdown()
    sys.stdout.flush()
    # A collective that was left behind may still hold a thread, which must not hold the process.
    os._exit(code)
