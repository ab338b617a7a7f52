"""Rules of jobs that train the messages of a Kafka topic (`spec.data.kafka`)."""

from __future__ import annotations

from cpr_operator.api.rules.rule import Rule

OF_KAFKA = (
    Rule(
        "spec.data/follow",
        "a topic has no end of its own, so Kafka data is followed",
        "state spec.data.follow, or choose a spec.data.format of files",
        "self.format != 'Kafka' || has(self.follow)",
    ),
    Rule(
        "spec.data/uri",
        "Kafka data is at kafka://broker:port/topic, and other data is not",
        "correct spec.data.uri or spec.data.format",
        "!has(self.uri) || (self.format == 'Kafka'"
        " ? self.uri.matches('^kafka://[^/,]+:[0-9]+(,[^/,]+:[0-9]+)*/[-._a-zA-Z0-9]{1,249}$')"
        " : !self.uri.startsWith('kafka://'))",
    ),
    Rule(
        "spec.data/kafka",
        "only Kafka data has messages",
        "remove spec.data.kafka, or set spec.data.format to Kafka",
        "!has(self.kafka) || self.format == 'Kafka'",
    ),
    Rule(
        "spec.data/store",
        "a topic is not in a store",
        "remove spec.data.store; spec.evaluation.uri is read at spec.snapshots.store",
        "!has(self.store) || self.format != 'Kafka'",
    ),
    Rule(
        "spec.data.kafka/saslMechanism",
        "SASL_PLAINTEXT and SASL_SSL need a mechanism, and other protocols have none",
        "correct spec.data.kafka.securityProtocol or saslMechanism",
        "has(self.saslMechanism) == self.securityProtocol.startsWith('SASL_')",
    ),
    Rule(
        "spec.data.kafka/credentialsSecret",
        "SASL needs credentials, and PLAINTEXT has none",
        "correct spec.data.kafka.securityProtocol or credentialsSecret",
        "self.securityProtocol == 'SSL' || has(self.credentialsSecret) == self.securityProtocol.startsWith('SASL_')",
    ),
    Rule(
        "spec.data.kafka/caBundle",
        "only SSL and SASL_SSL verify certificates",
        "remove spec.data.kafka.caBundle, or correct spec.data.kafka.securityProtocol",
        "!has(self.caBundle) || self.securityProtocol.endsWith('SSL')",
    ),
)
