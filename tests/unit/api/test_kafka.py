"""`spec.data.kafka` as the pods get it, with the access to the brokers."""

from __future__ import annotations

from pathlib import Path

from cpr_contract import env
from cpr_contract.spec import FollowSpec, KafkaSpec
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.validate import parse_spec
from cpr_operator.desired.pod import store_files
from cpr_trainer.data.open import evaluation_data, files_of
from cpr_trainer.runtime import Access
from support.documents import edited
from support.kafka_cases import KAFKA, SASL, URI


def test_pods_get_the_topic_and_the_connection() -> None:
    spec = parse_spec(edited(KAFKA | {"spec.data.kafka": SASL | {"valueFormat": "Arrow"}})["spec"], checked=True)
    data = to_job_spec(spec, "uid", "name").data
    assert (data.format, data.uri, data.epochs, data.follow) == ("Kafka", URI, 1, FollowSpec(30.0))
    assert data.kafka == KafkaSpec("Arrow", "SASL_SSL", "PLAIN")
    plain = to_job_spec(parse_spec(edited(KAFKA)["spec"], checked=True), "uid", "name").data
    assert plain.kafka is None


def test_pods_that_read_data_mount_the_credentials_of_the_brokers() -> None:
    kafka = SASL | {"caBundle": {"name": "ca"}}
    spec = parse_spec(edited(KAFKA | {"spec.data.kafka": kafka})["spec"], checked=True)
    files = store_files(spec, reads_data=True)
    assert files.variables == {
        env.DATA_CREDENTIALS_DIR: env.DATA_CREDENTIALS_MOUNT,
        env.DATA_CA_FILE: f"{env.DATA_CA_MOUNT}/ca.crt",
    }
    assert [volume["secret"]["secretName"] for volume in files.volumes] == ["reader", "ca"]
    assert not store_files(spec, reads_data=False).variables
    access, of_store = Access(Path("/data"), Path("/ca")), Access(Path("/store"))
    assert files_of(to_job_spec(spec, "uid", "name"), of_store, access).topic_access == access


def test_evaluation_reads_files_of_the_values() -> None:
    for values, form in (("JSON", "JSONLines"), ("Arrow", "Arrow")):
        edits = KAFKA | {"spec.data.kafka": {"valueFormat": values}, "spec.evaluation.uri": "/data/test/"}
        found = evaluation_data(to_job_spec(parse_spec(edited(edits)["spec"], checked=True), "uid", "name"))
        assert found is not None
        assert (found.format, found.uri) == (form, "/data/test/")
