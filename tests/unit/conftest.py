"""Fixtures of all unit tests."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Use one thread of torch, if it is loaded, for tiny tensors: several would only wait for each other."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
