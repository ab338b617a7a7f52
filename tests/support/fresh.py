"""Empty environments of Python, in which tests install the project by the commands of its pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = ROOT / ".cache" / "uv" / "bin" / "uv"  # made by `make env`
#: Folder of the CPU build of torch for this Python: the index's build has gigabytes of CUDA.
WHEELS = ROOT.parent / "shared" / "wheels"
CPU_BUILD = f"torch-*+cpu-cp{sys.version_info.major}{sys.version_info.minor}-*.whl"


def environment(folder: Path) -> dict[str, str]:
    """Make one in the folder; return the variables of a shell in which it is active.

    Its `pip` is uv's, which takes from its cache what `make env` or an earlier test has fetched.
    """
    local = folder / "venv"
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, local], check=True)
    pip = local / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec {UV} pip "$@"\n', "utf-8")
    pip.chmod(0o755)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    variables |= {"VIRTUAL_ENV": str(local), "PATH": f"{local / 'bin'}:{os.environ['PATH']}"}
    for wheel in WHEELS.glob(CPU_BUILD):
        constraints = folder / "constraints.txt"
        constraints.write_text(f"torch=={wheel.name.split('-')[1]}\n", "utf-8")
        variables |= {"UV_FIND_LINKS": str(WHEELS), "UV_CONSTRAINT": str(constraints)}
    return variables
