"""`spec.snapshots` and `spec.accuracyBudget`: saves and their store, and the accuracy that failures may cost."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cpr_contract.choices import Rebase, Strategy
from cpr_contract.limits import MAX_ANCHORS
from cpr_operator.api.base import ObjectName, SpecModel
from cpr_operator.api.rules.job_rules import GUESSED_SENSITIVITY


class SecretKey(SpecModel):
    """One key of a Secret in the job's namespace."""

    name: ObjectName
    """The Secret's name."""
    key: Annotated[str, Field(max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")] = "ca.crt"
    """The key in the Secret."""


class Endpoint(SpecModel):
    """An S3-compatible endpoint with its credentials."""

    endpoint: Annotated[str, Field(max_length=1024, pattern=r"^https?://[^/?#]+/?$")]
    """https://host[:port] or http://host[:port]. The scheme says whether TLS is used."""
    region: Annotated[str, Field(max_length=64)] | None = None
    """The store's region, if it needs one."""
    ca_bundle: SecretKey | None = None
    """The Secret with the CA bundle (PEM) to verify the store's certificate with."""
    credentials_secret: ObjectName | None = None
    """A Secret in the job's namespace with accessKey, secretKey and, if needed, sessionToken. Default: the pods'
    workload identity."""


class Store(Endpoint):
    """An S3-compatible store, or a folder that all pods share."""

    endpoint: Annotated[str, Field(max_length=1024, pattern=r"^(https?://[^/?#]+/?|file:///.+)$")]
    """https://host[:port], http://host[:port] or file:///folder. The scheme says whether TLS is used."""
    bucket: Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
    """The bucket, which must exist. For a folder endpoint: the first folder below it."""
    prefix: Annotated[str, Field(max_length=512, pattern=r"^[-._/a-zA-Z0-9]*$")] = ""
    """The prefix of all keys of this job. The job's uid follows it."""


class Interval(SpecModel):
    """The time between two cuts. A lost shard is restored from the last one."""

    mode: Literal["Auto", "Fixed"] = "Auto"
    """Auto: computed from the budget, the failure rate and the measured costs. Fixed: `seconds`."""
    seconds: Annotated[int, Field(ge=1, le=604800)] | None = None
    """Training time between two cuts, for mode Fixed."""


class Quantisation(SpecModel):
    """The precision of rows in saves. The flush of a drained shard and the finished model are always exact."""

    mode: Literal["Exact", "Auto", "Fixed"] = "Exact"
    """Exact: 32 bits per value, so a restored row equals the saved one. Auto: as few bits as the expected number of
    restores allows. Fixed: `bits`."""
    bits: Literal[8, 4, 3, 2] | None = None
    """Bits per value of a row, for mode Fixed."""


class Snapshots(SpecModel):
    """The store and the frequency of saves."""

    store: Store
    """The store of the saves."""
    interval: Interval = Interval()
    """The time between saves of all shards."""
    rebase: Rebase = "Intermittent"
    """The earlier save that a shard's save of changed rows is based on. Consecutive: the last one. OneShot: the last
    full one. Intermittent: the last full one, until a new full save is expected to cost less."""
    strategy: Strategy = "Full"
    """The rows that each shard also saves between cuts, so that they are fresher after a restore. Full: none. MFU: the
    most frequently updated. SSU: a sample of those in use. SCAR: the farthest from their last save. Growth: those with
    the largest growth of the square root of their RowWiseAdagrad accumulator."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 0.125
    """The portion of the rows of large tables that a priority save holds. Priority saves are 1 / fraction times as
    frequent as cuts. Small tables are saved whole."""
    quantisation: Quantisation = Quantisation()
    """The precision of rows in saves."""
    max_bytes_per_second: Annotated[int, Field(ge=1048576, le=2**53 - 1)] | None = None
    """Upper limit of the bytes that one shard sends to the store per second while it trains. Default: no limit. It is
    ignored when training is about to overtake a save, and for the saves at the end."""
    keep: Annotated[int, Field(ge=2, le=MAX_ANCHORS)] = 2
    """Number of anchors to keep restorable."""
    delete_with_job: bool = False
    """True: the job's saves are deleted with the job, except anchors that other jobs restore from (restoreFrom). False:
    they stay in the store."""
    keep_history: bool = False
    """With deleteWithJob: True keeps the job's history in the store, its record and the last outputs of its processes,
    which `cprjob report` and `cprjob logs` read. False: it is deleted, too."""
    dense_interval_seconds: Annotated[int, Field(ge=1, le=3600)] = 30
    """Seconds between two saves of the dense network, which is small."""
    restore_from: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    """Another job's anchor in the same store (its status.result.key) to start from. Model and optimizer are restored,
    the position in the data is not."""


class AucDrop(SpecModel):
    """A budget as a drop of AUC, with the sensitivity that converts it to lost samples."""

    limit: Annotated[float, Field(ge=0, le=0.5)]
    """The AUC that failures may cost, for example 0.0005. 0 allows no lost samples."""
    sensitivity: Annotated[float, Field(gt=0, le=1000)] | None = None
    """AUC lost per unit of the portion of lost samples: losing 1 % of all samples costs a hundredth of this value.
    `cprjob calibrate` measures it. If absent, the plan uses a cautious guess and marks it."""

    @property
    def portion(self) -> float:
        """PLS = limit / sensitivity: AUC falls about linearly with PLS (Maeng et al., MLSys 2021)."""
        return self.limit / (self.sensitivity or GUESSED_SENSITIVITY)


class AccuracyBudget(SpecModel):
    """The accuracy that failures may cost, stated in one of two ways."""

    type: Literal["PortionOfLostSamples", "AUCDrop"] = "PortionOfLostSamples"
    """The field that states the budget: portionOfLostSamples or aucDrop."""
    portion_of_lost_samples: Annotated[float, Field(ge=0, lt=1)] | None = None
    """The portion of all samples, averaged over the shards, that may lose their updates. 0 allows none. A recovery that
    would exceed the budget rolls the whole job back instead."""
    auc_drop: AucDrop | None = None
    """The AUC that may be lost, and the AUC that lost samples cost."""
    window: Annotated[int, Field(ge=1, le=2**50)] | None = None
    """The same portion is also the most that any `window` consecutive samples may lose, such as the samples of a day.
    It may change while the job trains. Default: there is no such limit."""

    @property
    def portion(self) -> float:
        """Return the budget as a portion of lost samples, for the ledger and the plan."""
        if self.auc_drop is not None:
            return self.auc_drop.portion
        return self.portion_of_lost_samples or 0.0

    @property
    def basis(self) -> str:
        """Return a sentence on how `portion` was computed; empty if the user stated it."""
        drop = self.auc_drop
        if drop is None:
            return ""
        allowed = f"An AUC drop of {drop.limit:g} allows a portion of lost samples of {drop.portion:.3g}"
        if drop.sensitivity is not None:
            return f"{allowed}, by the stated sensitivity of {drop.sensitivity:g}."
        guess = f"a sensitivity of {GUESSED_SENSITIVITY:g}, which is only a guess"
        return f"{allowed}, by {guess}: measure it with cprjob calibrate."
