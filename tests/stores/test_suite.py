"""The suite of the stores, on stores that need Python alone. `tests/s3_servers` runs it on MinIO and versitygw.

moto differs from S3 in three ways, so three cases are shown there alone:
- It accepts an upload with bytes that differ from its checksum header.
- It accepts all credentials.
- It checks a key and writes it in two steps, so several writers with If-None-Match may succeed at once.
"""

from __future__ import annotations

import pytest

from cpr_trainer.store import probe
from support.store_data import DataSuite
from support.store_faults import AnswerSuite, FaultSuite
from support.store_suite import BucketSuite, ObjectSuite, ProbeSuite, RaceSuite


class TestObjects(ObjectSuite):
    pass


@pytest.mark.parametrize("store", ["memory", "folder"], indirect=True)
class TestRaces(RaceSuite):
    pass


class TestProbe(ProbeSuite):
    @pytest.fixture(autouse=True)
    def _without_races(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(probe, "_RACES", 0)


class TestBuckets(BucketSuite):
    pass


class TestFaults(FaultSuite):
    pass


class TestAnswers(AnswerSuite):
    pass


class TestData(DataSuite):
    pass
