"""The release before this one, 0.1.0, as the history of this repository has it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: The commit of 0.1.0. It has no tag.
COMMIT = "89d140c"


def unpack(folder: Path) -> None:
    """Write its files into a folder. Skips the test in a clone without that part of the history."""
    packed = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip(f"the history of this clone does not reach back to 0.1.0: {packed.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
