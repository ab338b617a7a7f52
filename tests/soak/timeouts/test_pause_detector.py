"""A stopped process detects its suspension when it continues."""

import os
import signal
import subprocess
import sys
import time

STOPPED = """
import os, signal, time
from cpr_trainer.trainer.control import Standstill
standstill = Standstill()
standstill.start()
print("ready", flush=True)
time.sleep(3)  # in which the other side stops us, and lets us go on
print(standstill.take_s() > 0, flush=True)
"""


def test_sigstop_is_detected_as_a_suspension() -> None:
    with subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        time.sleep(2.5)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "True\n"
