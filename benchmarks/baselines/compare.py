"""Compare CPRJob with TorchRec and a parameter server on torch RPC: benchmarks/baselines/compare.py [OPTION]...

The script runs `cprjob bench train` with its options and three more baselines. Run `make peers` first.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
BENCHMARKS = FOLDER.parent
TRAINER_IMAGE = BENCHMARKS.parent / "trainer_image"
PYTHON = FOLDER / ".venv" / "bin" / "python"
BASELINES = {
    "torchrec": ("torchrec_baseline.py", "1"),
    "torchrec-gloo": ("torchrec_baseline.py", "2"),
    "torch-rpc": ("rpc_baseline.py",),
}


def main() -> None:
    """Replace this process by `cprjob bench train` with all baselines."""
    if not PYTHON.exists():
        sys.exit("The baselines have no Python: run `make peers` first.")
    commands = {
        name: shlex.join((str(PYTHON), str(FOLDER / script), *rest)) for name, (script, *rest) in BASELINES.items()
    }
    options = [f"--peer={name}={command}" for name, command in commands.items()]
    # The baselines' Python has the trainer's requirements, but not the trainer.
    places = (str(TRAINER_IMAGE), str(BENCHMARKS), os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    cprjob = str(Path(sys.executable).with_name("cprjob"))
    os.execv(cprjob, [cprjob, "bench", "train", *options, *sys.argv[1:]])  # noqa: S606 -- our own command


if __name__ == "__main__":
    main()
