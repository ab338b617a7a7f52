"""The suite of the stores on MinIO and versitygw, and the cases in which moto differs from S3."""

from __future__ import annotations

import pytest

from cpr_trainer.store import Store, StoreUnreachableError, open_store
from support.fault_proxy import FaultProxy, Flip
from support.s3_servers import ServerOf
from support.store_data import DataSuite
from support.store_faults import ATTEMPTS, DATA, AnswerSuite, FaultSuite, read, write
from support.store_suite import BucketSuite, ObjectSuite, ProbeSuite, RaceSuite, errors_of

pytestmark = pytest.mark.store


class TestObjects(ObjectSuite):
    pass


class TestRaces(RaceSuite):
    pass


class TestProbe(ProbeSuite):
    pass


class TestBuckets(BucketSuite):
    def test_certificate_of_an_unknown_authority_is_refused(self, server_of: ServerOf) -> None:
        server = server_of("minio+tls")
        spec = server.new_bucket()
        open_store(spec, server.credentials_dir, server.ca_file).put("job/a", b"a")
        stranger = open_store(spec, server.credentials_dir, None)
        assert [error.reason for error in errors_of(stranger)] == ["StoreUnreachable"] * 5
        with pytest.raises(StoreUnreachableError, match="caBundle"):
            stranger.list("")


class TestFaults(FaultSuite):
    def test_write_that_arrives_damaged_is_repeated(self, store: Store, proxy: FaultProxy) -> None:
        proxy.inject(Flip(request_bytes=1 << 20))
        write(store)
        assert proxy.seen == 2
        assert read(store) == DATA

    def test_write_that_arrives_damaged_every_time_leaves_nothing(self, store: Store, proxy: FaultProxy) -> None:
        proxy.inject(*[Flip(request_bytes=1 << 20)] * ATTEMPTS)
        with pytest.raises(StoreUnreachableError):
            store.put("job/other", DATA)
        assert [entry.key for entry in store.list("")] == ["job/part"]


class TestAnswers(AnswerSuite):
    pass


class TestData(DataSuite):
    pass
