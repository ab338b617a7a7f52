"""A process that was stopped and goes on notices that it did not run."""

import os
import signal
import subprocess
import sys
import time

from cpr_trainer.trainer.standstill import Standstill


def test_a_late_turn_is_a_standstill_and_a_punctual_one_is_none() -> None:
    times = iter((0.0, 0.05, 0.5, 0.55, 10.6, 10.65, 10.7))  # a loaded machine, and ten seconds of standstill
    standstill = Standstill(lambda: next(times))
    for _ in range(2):
        standstill.turn()
    assert standstill.take_s() == 0.0
    standstill.turn()
    assert round(standstill.take_s(), 6) == 10.0
    assert standstill.take_s() == 0.0


STOPPED = """
import os, signal, time
from cpr_trainer.trainer.standstill import Standstill
standstill = Standstill()
standstill.start()
print("ready", flush=True)
time.sleep(3)  # in which the other side stops us, and lets us go on
print(standstill.take_s() > 0, flush=True)
"""


def test_sigstop_is_noticed() -> None:
    with subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        time.sleep(2.5)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.readline() == "True\n"
