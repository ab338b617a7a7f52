"""`python -m cprjob_bench ROLE`: a process that a bench starts."""

import os
import sys

from cpr_trainer.__main__ import leave  # first: it sets what torch and numpy read when they are loaded
from cprjob_bench.bench_process import main

if __name__ == "__main__":
    leave(main(sys.argv[1:], os.environ))
