"""Rules of jobs that train the messages of a topic: for each a document that keeps it and one that breaks it."""

from __future__ import annotations

from support.documents import ABSENT, COLUMNS, PARQUET, Case, Edits, bound

URI = "kafka://broker-0:9092,broker-1:9092/clicks.of-2026"
KAFKA: Edits = {"spec.data": {"format": "Kafka", "uri": URI, "columns": COLUMNS, "follow": {}}}
SASL = {"securityProtocol": "SASL_SSL", "saslMechanism": "PLAIN", "credentialsSecret": "reader"}

_AT = "Kafka data is at kafka://broker:port/topic"
_MECHANISM = "SASL_PLAINTEXT and SASL_SSL need a mechanism"
_CREDENTIALS = "SASL needs credentials, and PLAINTEXT has none"


def _connected(**changes: object) -> Edits:
    kafka = {name: value for name, value in (SASL | changes).items() if value is not None}
    return KAFKA | {"spec.data.kafka": kafka}


KAFKA_RULES = (
    Case("spec.data.follow", KAFKA, KAFKA | {"spec.data.follow": ABSENT, "spec.data.epochs": 1}, "a topic has no end"),
    Case("spec.data.uri", KAFKA, KAFKA | {"spec.data.uri": "s3://clicks/day"}, _AT),
    Case("spec.data.uri", KAFKA, KAFKA | {"spec.data.uri": "kafka://broker/clicks"}, _AT),
    Case("spec.data.uri", KAFKA, KAFKA | {"spec.data.uri": "kafka://broker:9092/a/b"}, _AT),
    Case("spec.data.uri", PARQUET, PARQUET | {"spec.data.uri": URI}, _AT),
    Case(
        "spec.data.kafka",
        KAFKA | {"spec.data.kafka": {"valueFormat": "Arrow"}},
        PARQUET | {"spec.data.kafka": {}},
        "only Kafka data has messages",
    ),
    Case(
        "spec.data.store",
        KAFKA | {"spec.evaluation.uri": "s3://clicks/test"},
        KAFKA | {"spec.evaluation.uri": "s3://clicks/test", "spec.data.store": {"endpoint": "https://lake.example"}},
        "a topic is not in a store",
    ),
    Case("spec.data.kafka.saslMechanism", _connected(), _connected(saslMechanism=None), _MECHANISM),
    Case(
        "spec.data.kafka.saslMechanism",
        _connected(securityProtocol="SASL_PLAINTEXT"),
        _connected(securityProtocol="SSL"),
        _MECHANISM,
    ),
    Case("spec.data.kafka.credentialsSecret", _connected(), _connected(credentialsSecret=None), _CREDENTIALS),
    Case(
        "spec.data.kafka.credentialsSecret",
        _connected(securityProtocol="SSL", saslMechanism=None),
        _connected(securityProtocol="PLAINTEXT", saslMechanism=None),
        _CREDENTIALS,
    ),
    Case(
        "spec.data.kafka.caBundle",
        _connected(caBundle={"name": "ca"}),
        _connected(caBundle={"name": "ca"}, securityProtocol="SASL_PLAINTEXT"),
        "only SSL and SASL_SSL verify certificates",
    ),
)
KAFKA_BOUNDS = (
    bound("spec.evaluation.uri", "/data/test/", URI, under=KAFKA),
    bound("spec.data.kafka.valueFormat", "Arrow", "Avro", under=KAFKA),
    bound("spec.data.kafka.securityProtocol", "PLAINTEXT", "TLS", under=KAFKA),
    bound("spec.data.kafka.saslMechanism", "SCRAM-SHA-256", "GSSAPI", under=KAFKA | {"spec.data.kafka": SASL}),
    bound("spec.data.kafka.credentialsSecret", "reader", "Reader", under=KAFKA | {"spec.data.kafka": SASL}),
)
