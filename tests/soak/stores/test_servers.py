"""All S3 servers that install here: those that can do what saves need, and those that are refused by name.

docs/store.md has the table of what was found. Servers are ended when the next one begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cpr_contract.spec import StoreSpec
from cpr_trainer.store import Store, StoreUnsuitableError, open_store
from support.other_s3_servers import ALL_SERVERS
from support.runs import incarnations, run, small_job
from support.s3_servers import S3Server
from support.store_data import DataSuite
from support.store_faults import AnswerSuite, FaultSuite
from support.store_suite import BucketSuite, ObjectSuite, ProbeSuite, RaceSuite

pytestmark = pytest.mark.store

CHECKSUM = "uploads with a checksum (header X-Amz-Checksum-Crc32c)"
CONDITION = "conditional uploads (header If-None-Match)"
WRITERS = "conditional uploads of several writers at once"
#: The missing abilities, by server; none for a suitable one.
LACKS: dict[str, tuple[str, ...]] = {
    "minio": (),
    "versitygw": (),
    "seaweedfs": (),
    "localstack": (),
    "moto": (),
    "s3mock": (WRITERS,),
    "s3proxy": (CHECKSUM, WRITERS),
    "s3proxy+ignore-unknown-headers": (WRITERS,),
    "garage": (CONDITION, WRITERS),
    "rclone": (CONDITION, WRITERS),
    "s3rver": (CONDITION, WRITERS),
}
SUITABLE = tuple(name for name, lacks in LACKS.items() if not lacks)
#: Tests in which a server differs, and how. The product stands it.
DIFFERS: dict[tuple[str, str], str] = {
    ("seaweedfs", "test_bucket_may_vanish_and_come_back"): "a PUT makes a missing bucket again",
}


@pytest.fixture(scope="session", params=ALL_SERVERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with ALL_SERVERS[request.param](tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture
def spec(server: S3Server) -> StoreSpec:
    return server.new_bucket()


@pytest.fixture
def store(server: S3Server) -> Store:
    return open_store(server.new_bucket("a/prefix"), server.credentials_dir, None)


@pytest.fixture(autouse=True)
def _differences(request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["server"]
    reason = DIFFERS.get((name, request.node.originalname))
    if reason is not None:
        request.applymarker(pytest.mark.xfail(reason=reason))


only_suitable = pytest.mark.parametrize("server", SUITABLE, indirect=True, scope="session")


@only_suitable
class TestObjects(ObjectSuite):
    pass


@only_suitable
class TestProbe(ProbeSuite):
    pass


@pytest.mark.parametrize("server", [name for name in SUITABLE if name != "moto"], indirect=True, scope="session")
class TestRaces(RaceSuite):
    """Not of moto, which lets several writers win once in a while: it is for tests."""


@only_suitable
class TestBuckets(BucketSuite):
    pass


@only_suitable
class TestFaults(FaultSuite):
    pass


@only_suitable
class TestAnswers(AnswerSuite):
    pass


@pytest.mark.parametrize("server", [name for name in LACKS if name != "s3proxy"], indirect=True, scope="session")
class TestData(DataSuite):
    """A store of data alone need not be suitable for saves. Plain S3Proxy takes no upload of this suite."""


@pytest.mark.parametrize(
    ("server", "lacks"), [(name, lacks) for name, lacks in LACKS.items() if lacks], indirect=["server"], scope="session"
)
def test_unsuitable_server_is_refused_by_name(store: Store, lacks: tuple[str, ...]) -> None:
    with pytest.raises(StoreUnsuitableError) as raised:
        store.probe("job/probe/")
    for ability in (CHECKSUM, CONDITION, WRITERS):
        assert (ability in raised.value.message) == (ability in lacks)
    assert ("s3proxy.ignore-unknown-headers=true" in raised.value.remedy) == (CHECKSUM in lacks)
    assert store.list("") == ()


@pytest.mark.timeout(600)
def test_job_with_a_killed_shard_succeeds_or_is_refused(
    request: pytest.FixtureRequest, server: S3Server, spec: StoreSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(small_job(recovery={"replay": {"mode": "Required", "memory": "64Mi"}})), "utf-8")
    store = json.dumps({"endpoint": server.endpoint, "region": "us-east-1", "bucket": spec.bucket})
    code, report, output = run(tmp_path, job, "--set", f"snapshots.store={store}", "--kill", "shard/1@0.5:POD")
    if LACKS[request.node.callspec.params["server"]]:
        assert code == 1, output
        assert "StoreUnsuitable" in output
        assert f"The store at {server.endpoint} lacks what saves need" in output
        return
    assert code == 0, output
    assert incarnations(report)["shard/1"] == 2
    assert report["lost_row_updates"] == 0
    assert open_store(spec, server.credentials_dir, None).get(report["result"])
