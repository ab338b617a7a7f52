"""The real click logs, which are never part of the project: where they lie, and what a test does without them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("CPR_REAL_DATA") or Path(__file__).parents[3] / "shared" / "data")


def click_log(name: str) -> Path:
    """Return the path of a log. Without it the test is skipped, or fails where cluster tests are required."""
    path = FOLDER / name
    if path.exists():
        return path
    message = f"no real click logs: {name} is not in {FOLDER} (set CPR_REAL_DATA)"
    if os.environ.get("CPR_CLUSTER_TESTS") == "required":
        pytest.fail(message)
    pytest.skip(message)
