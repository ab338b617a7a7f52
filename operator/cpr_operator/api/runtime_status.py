"""`status.runtime`: the settings that a job was started with."""

from __future__ import annotations

import ssl
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator, Field

from cpr_contract.choices import ReplayPolicy, SparseUpdates
from cpr_contract.codec import MAX_GROWTH, MAX_LENGTH
from cpr_contract.limits import MAX_WORKERS
from cpr_operator.api.base import Model, Name, Positive, Sentence, Timestamp
from cpr_operator.api.cprjob_spec import IssuerRef
from cpr_operator.api.pod_placement import Quota


@lru_cache(maxsize=2048)
def _certificate(pem: str) -> str:
    """Return the text if it is empty, or has a certificate. Raises ValueError."""
    if pem:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem)
        except (ssl.SSLError, ValueError, TypeError) as error:  # TypeError: not ASCII
            raise ValueError("it is not a certificate in PEM") from error
    return pem


class WorkerCount(Model):
    """The number of workers of each trainer. It is fixed for the lifetime of the job."""

    count: Annotated[int, Field(ge=1, le=MAX_WORKERS)] | None = None
    """The number; absent until the first leader has measured it."""
    reason: Sentence
    """The reason for this number."""


class SparseUpdatesMode(Model):
    """The mode in which shards update embedding rows. It is fixed for the lifetime of the job."""

    mode: SparseUpdates
    """PerStep: once a step, by the sum over all trainers. PerPush: once for each trainer's push."""
    reason: Sentence
    """The reason for this mode."""


class IssuedCA(Model):
    """The certificate of a job's CA that an issuer has signed."""

    issuer: IssuerRef
    """The issuer."""
    request: Annotated[str, Field(max_length=4096)]
    """The certificate signing request (PKCS #10, in PEM), which each renewal submits again."""
    number: Positive
    """The number of certificates that were issued for this key."""
    chain: Annotated[str, Field(max_length=16384)] = ""
    """The certificates above that of the CA, in PEM. Members of the job do not trust them."""
    not_after: Timestamp
    """The end of the certificate."""
    renew_at: Timestamp
    """When the operator requests the next one."""


class Runtime(Model):
    """The settings that the job was started with. Replaced pods use them until the job is suspended and resumed."""

    image: Annotated[str, Field(max_length=512)]
    """The trainer image."""
    contract_version: Positive
    """The version of the contract between the operator and this job's pods."""
    template_hash: Annotated[str, Field(max_length=64)]
    """A hash of both pod templates and of the operator's required fields."""
    key_digest: Annotated[str, Field(max_length=64)] = ""
    """The suffix of the name of the Secret with the pods' handshake key. Empty for jobs started by version 0.1.0."""
    job_spec: Annotated[str, Field(max_length=MAX_LENGTH + MAX_GROWTH)]
    """The contract's JobSpec as JSON, exactly as the pods read it. A long one is packed: base64 of zlib."""
    quota: Quota | None = None
    """The quota of a queue of Kueue that the pods run under; absent if the job is in no queue."""
    replay: ReplayPolicy = ReplayPolicy(reason="the job was started by a release without replay")
    """The policy by which trainers push lost updates again to a replaced shard, and its reason."""
    restart_rules: bool = False
    """True if the container of a killed shard restarts in its pod, with all rows. It needs restart rules, which the
    cluster had when the job started (Kubernetes 1.35)."""
    pod_group: Name = ""
    """The PodGroup of the trainers and shards, which the scheduler places together; empty for none."""
    workers: WorkerCount | None = None
    """The number of workers of each trainer. Absent in jobs started by version 0.1.0."""
    sparse_updates: SparseUpdatesMode | None = None
    """How shards update embedding rows, and why. Absent in jobs started by version 0.1.0: they update per push."""
    ca: Annotated[str, Field(max_length=4096), AfterValidator(_certificate)] = ""
    """The certificate of the job's CA, in PEM, which signs those of all processes of the job. Its key is in the Secret
    of keyDigest. Empty: the traffic between the pods of the job is not encrypted."""
    identity_digest: Annotated[str, Field(max_length=64)] = ""
    """A digest of the operator's certificate that the pods accept; empty if ca is."""
    issued: IssuedCA | None = None
    """How ca was issued; absent if it signs itself."""

    @property
    def issued_ca(self) -> str:
        """Return the CA that an issuer has signed, and its chain (PEM), as pods read them; empty if it signs itself."""
        return f"{self.ca}{self.issued.chain}" if self.issued is not None else ""
