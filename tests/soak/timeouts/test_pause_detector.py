"""A stopped process detects its suspension when it continues."""

import os
import signal
import subprocess
import sys
import time

STOPPED = """
import os, signal, time
from cpr_trainer.trainer.control import PauseDetector
detector = PauseDetector()
detector.start()
print("ready", flush=True)
time.sleep(3)  # the test stops and continues this process meanwhile
print(detector.take_paused_s() > 0, flush=True)
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
