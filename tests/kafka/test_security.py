"""Listeners of a real broker with TLS and SASL, and a user with no more rights than docs/kafka.md names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # not in its __all__
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from cpr_contract.spec import KafkaSpec, SaslMechanism
from cpr_trainer.data.kafka.client import KafkaTopic
from cpr_trainer.runtime import Access
from cpr_trainer.store import CredentialsRefusedError, StoreUnreachableError
from support.kafka_broker import Broker, running_broker, send
from support.kafka_security import PASSWORD, USER, Authority, write_listeners

pytestmark = pytest.mark.store

ROWS = [b'{"id": %d}' % number for number in range(12)]
RIGHTS = (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
SCRAM = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def secured(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose topic `clicks` has messages, which the user of the tests may read."""
    folder = tmp_path_factory.mktemp("secured")
    write_listeners(folder, authority)
    with running_broker(folder) as broker:
        send(broker.producer(), broker.topic("clicks"), ROWS)
        broker.topic("others")
        for mechanism in SCRAM.values():
            upsertion = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            broker.admin.alter_user_scram_credentials([upsertion])[USER].result(60)
        topic = (ResourceType.TOPIC, "clicks", ResourcePatternType.LITERAL)
        bindings = [
            AclBinding(*topic, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
            for user in (USER, f"CN={USER}")
            for operation in RIGHTS
        ]
        for created in broker.admin.create_acls(bindings).values():
            created.result(60)
        yield broker


def credentials(folder: Path, authority: Authority, password: str = PASSWORD) -> Access:
    """The files of a Secret with a user name and a password."""
    (folder / "username").write_text(USER)
    (folder / "password").write_text(f"{password}\n")
    return Access(credentials_dir=folder, ca_file=authority.ca_file)


def sasl(broker: Broker, access: Access, mechanism: SaslMechanism = "PLAIN", topic: str = "clicks") -> KafkaTopic:
    spec = KafkaSpec(security_protocol="SASL_SSL", sasl_mechanism=mechanism)
    return broker.reader(f"kafka://{broker.address_of('SASL_SSL')}/{topic}", spec, access)


def check(topic: KafkaTopic) -> None:
    """All that a job does with a topic."""
    assert topic.cleanup_policy() == "delete"
    assert topic.bounds() == {0: (0, len(ROWS))}
    assert [message.value for message in topic.read({0: range(2, 7)})] == ROWS[2:7]
    topic.disconnect()


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
def test_user_with_the_rights_of_the_page_reads_by_password(
    secured: Broker, authority: Authority, tmp_path: Path, mechanism: SaslMechanism
) -> None:
    check(sasl(secured, credentials(tmp_path, authority), mechanism))


def test_client_certificate_is_presented(secured: Broker, authority: Authority, tmp_path: Path) -> None:
    uri, spec = f"kafka://{secured.address_of('SSL')}/clicks", KafkaSpec(security_protocol="SSL")
    key, certificate = authority.sign(USER)
    (tmp_path / "tls.key").write_bytes(key)
    (tmp_path / "tls.crt").write_bytes(certificate)
    check(secured.reader(uri, spec, Access(credentials_dir=tmp_path, ca_file=authority.ca_file)))
    with pytest.raises(StoreUnreachableError, match=r"Kafka at .* cannot be reached"):
        secured.reader(uri, spec, Access(ca_file=authority.ca_file)).bounds()


def test_wrong_password_is_named_and_the_right_one_is_read_again(
    secured: Broker, authority: Authority, tmp_path: Path
) -> None:
    topic = sasl(secured, credentials(tmp_path, authority, "wrong"), "SCRAM-SHA-512")
    with pytest.raises(CredentialsRefusedError, match=r"refuses the credentials.*Correct data\.kafka"):
        topic.bounds()
    credentials(tmp_path, authority)
    check(topic)


def test_topic_without_rights_is_a_refusal(secured: Broker, authority: Authority, tmp_path: Path) -> None:
    topic = sasl(secured, credentials(tmp_path, authority), topic="others")
    with pytest.raises(CredentialsRefusedError, match="allow Read, Describe and DescribeConfigs on the topic"):
        topic.bounds()


def test_broker_of_another_authority_is_not_trusted(secured: Broker, authority: Authority, tmp_path: Path) -> None:
    access = credentials(tmp_path, authority)
    foreign = access._replace(ca_file=Authority(tmp_path / "foreign").ca_file)
    with pytest.raises(StoreUnreachableError, match=r"data\.kafka\.securityProtocol"):
        sasl(secured, foreign).bounds()
