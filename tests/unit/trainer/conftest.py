"""Fixtures of all tests of a trainer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from support.wait_limit import wait_limit


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> Iterator[None]:
    """Use one thread for tiny tensors: several would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _wait_limit() -> Iterator[None]:
    """Limit each wait: it then fails its test before the test's own timeout leaves threads behind."""
    with wait_limit(200.0):
        yield
