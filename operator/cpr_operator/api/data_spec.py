"""`spec.data` and `spec.evaluation`: the samples to train on, and those to score the model on meanwhile."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from cpr_contract.model import MAX_FEATURES, MAX_NUMERIC, MAX_PREDICTED, MAX_TABLES
from cpr_contract.spec import DataFormat, SaslMechanism, SecurityProtocol, StopMetric, ValueFormat
from cpr_operator.api.base import ColumnName, DataUri, Entrypoint, ObjectName, SpecModel, Uri, epoch
from cpr_operator.api.rules import data_rules as rules
from cpr_operator.api.rules.rule import fail
from cpr_operator.api.snapshots_spec import Endpoint, SecretKey

LabelText = Annotated[str, Field(max_length=64)]
LabelTexts = Annotated[tuple[LabelText, ...], Field(min_length=1, max_length=16)]


class LabelValues(SpecModel):
    """The values of a label that is a column of texts or integers. A row with another value is a bad one."""

    label: ColumnName
    """The column, one of labels."""
    positive: LabelTexts
    """The values that mean 1, as texts."""
    negative: LabelTexts
    """The values that mean 0, as texts. "" is a missing value."""


class Columns(SpecModel):
    """The columns that feed the model, by name. In files without a header line, by number from 1."""

    labels: Annotated[tuple[ColumnName, ...], Field(max_length=MAX_PREDICTED)] = ()
    """Columns to predict, each 0 or 1. Status shows the scores of the first."""
    label_values: Annotated[
        tuple[LabelValues, ...],
        Field(
            max_length=MAX_PREDICTED,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["label"]},
        ),
        rules.LABEL_VALUES.once("label"),
    ] = ()
    """Labels with other values than 0 and 1."""
    targets: Annotated[tuple[ColumnName, ...], Field(max_length=MAX_PREDICTED)] = ()
    """Further columns to predict, of finite numbers. They need a network with its own loss."""
    weight: ColumnName | None = None
    """A column with the weight of each sample, a number from 0 to 1000000: its loss is multiplied by it, and metrics
    are weighted. Default: all samples have the weight 1."""
    counts: Annotated[tuple[ColumnName, ...], Field(max_length=MAX_NUMERIC)] = ()
    """Numeric features, transformed to log(1 + max(x, 0)). Missing values become 0."""
    numbers: Annotated[tuple[ColumnName, ...], Field(max_length=MAX_NUMERIC)] = ()
    """Numeric features, used unchanged. Missing values become 0."""
    categories: Annotated[tuple[ColumnName, ...], Field(max_length=MAX_TABLES)] = ()
    """Categorical features: strings or integers, hashed to rows. The t-th column feeds the t-th table. A table with
    pooling takes lists of them. With model.features there are none, because features name their columns."""
    separator: Annotated[str, Field(max_length=1, pattern=r'^[^"\r\n]$')] | None = None
    """The character between the ids of a bag in CSV and TSV. Other formats have lists."""
    integers: Annotated[tuple[ColumnName, ...], Field(max_length=MAX_FEATURES)] = ()
    """Categories, or columns of model.features, whose ids are whole numbers: 12, 12.0 and " 12" are the id 12. Columns
    of floating point numbers may be named, too. A cell that is not a whole number makes a bad row."""


class Csv(SpecModel):
    """The syntax of CSV and TSV, in the terms of DuckDB and pyarrow. Absent fields are those of the format."""

    delimiter: Annotated[str, Field(max_length=1, pattern=r"^[\x01-\x09\x0B\x0C\x0E-\x7E]$")] | None = None
    """The character between two cells. Default: a comma in CSV, a tab in TSV."""
    quote: Annotated[str, Field(max_length=1, pattern=r"^[!-~]?$")] | None = None
    """The character around a cell; twice within the cell it stands for itself. Empty: quotes are characters like
    others. Default: " in CSV, none in TSV."""
    escape: Annotated[str, Field(max_length=1, pattern=r"^[!-~]$")] | None = None
    """The character before one that stands for itself: within quoted cells, or in all cells if there is no quote. With
    a backslash b, n, r, t and 0 stand for control characters, and without a quote the cell \\N is missing. Default:
    none."""
    trim: bool = False
    """True if blanks at both ends of a cell do not belong to it."""
    null_values: Annotated[tuple[Annotated[str, Field(max_length=64)], ...], Field(max_length=16)] = ()
    """Texts of missing values, such as "NULL" and "n/a", beside the empty cell. Write them in quotes in YAML."""
    boolean: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=16)], ...], Field(max_length=2)] = ()
    """The text of true and that of false, such as ["True", "False"], in quotes in YAML. They are then 1 and 0 as labels
    and numbers, and true and false as categories, as booleans of Parquet are."""


#: Of the times that Kubernetes reads, those that Python reads the same.
_RFC_3339 = r"^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})$"


def _check_time(value: str) -> str:
    try:
        epoch(value)
    except ValueError as error:
        fail("spec.data.follow.until", f"{value} is no time: {error}", "state one, such as 2026-12-31T00:00:00Z")
    return value


_Time = Annotated[
    str,
    Field(max_length=32, pattern=_RFC_3339, json_schema_extra={"format": "date-time"}),
    AfterValidator(_check_time),
]


class Follow(SpecModel):
    """Data that grows: what comes after the start is trained, too, in the order in which it is found."""

    every_seconds: Annotated[int, Field(ge=1, le=86400)] = 30
    """Seconds between two looks for new data. A file is trained once two looks have found it unchanged. A version of a
    table may only append rows."""
    until: _Time | None = None
    """The end of the data in RFC 3339 with an offset, such as 2026-12-31T00:00:00Z. Files that are found before are
    trained, and the job then ends as one without `follow` does. Default: no end."""
    idle: Literal["Wait", "Finish"] = "Wait"
    """When all samples are trained and a look finds no new data. Wait: the job waits for more, with the condition
    CaughtUp. Finish: the data has ended."""

    @property
    def may_end(self) -> bool:
        """True if the data has an end: by time, or once the job is idle."""
        return self.until is not None or self.idle == "Finish"


class Kafka(SpecModel):
    """The messages of a Kafka topic, and the connection to its brokers, in the terms of Kafka's clients."""

    value_format: ValueFormat = "JSON"
    """The values of messages. JSON: an object, which is a row; its keys are the columns. Arrow: a stream of Arrow IPC
    with any number of rows."""
    security_protocol: SecurityProtocol = "PLAINTEXT"
    """security.protocol of the clients: whether they use TLS (SSL), and whether they authenticate (SASL)."""
    sasl_mechanism: SaslMechanism | None = None
    """sasl.mechanism of the clients."""
    credentials_secret: ObjectName | None = None
    """A Secret in the job's namespace with username and password for SASL, and tls.crt and tls.key for a client
    certificate with SSL."""
    ca_bundle: SecretKey | None = None
    """The Secret with the CA bundle (PEM) to verify the certificates of the brokers with. Default: the public
    authorities."""


class Data(SpecModel):
    """The samples to train on, their order and their batches."""

    format: DataFormat
    """Criteo: the layout of the Criteo click logs, a TSV without header. CSV, TSV, JSONLines, Parquet, Arrow, ORC:
    tables, mapped by `columns`. JSONLines has an object a line, Arrow is the IPC file format (Feather). Text files may
    be plain, gzip, bzip2 or zstd. Delta, Iceberg: a Delta Lake or Apache Iceberg table, whose log lists its Parquet
    files. Kafka: the messages of a topic, see kafka; needs follow. Synthetic: generated by the trainers, with a
    learnable signal. Custom: delivered by code in the image, see entrypoint."""
    uri: DataUri | None = None
    """Location of the data: s3://bucket/key (read at data.store), gs://bucket/key, hdfs://host:port/key,
    abfss://container@account.dfs.core.windows.net/key, file:///path or an absolute path, mounted in the trainers. A /
    at the end names all files below. `*`, `?` and `[...]` are wildcards. With Delta and Iceberg it is the folder of one
    table, or a metadata file of Iceberg. For Kafka: kafka://broker:port/topic, with commas between several brokers."""
    version: Annotated[int, Field(ge=0)] | None = None
    """The version of the Delta table, or the id of the Iceberg table's snapshot, that is trained; with `follow` the
    first one. Default: the newest when the job starts."""
    store: Endpoint | None = None
    """The store of s3:// URIs: uri, evaluation.uri and the files of vocabularies. Default: at the endpoint and with the
    credentials of snapshots.store. If it is stated, nothing of snapshots.store is used to read data."""
    entrypoint: Entrypoint | None = None
    """For Custom data: package.module:factory in the image. It is called with uri and returns an indexable dataset: the
    same rows in the same order in every trainer, and after every restart."""
    columns: Columns | None = None
    """The columns of a table, or of Custom data, that feed the model."""
    header: bool = True
    """True if each CSV or TSV file begins with a line of names."""
    csv: Csv | None = None
    """The syntax of CSV or TSV that another program wrote."""
    kafka: Kafka | None = None
    """The messages of Kafka, and the access to its brokers. Default: JSON, without TLS and credentials."""
    epochs: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Number of passes over the data. With `follow` it is 1."""
    samples: Annotated[int, Field(ge=1, le=2**50)] | None = None
    """Number of samples to train. Data in files is repeated or truncated to this length."""
    follow: Follow | None = None
    """Trains files that come while the job runs. Default: files that come after the start are not trained."""
    batch_size: Annotated[int, Field(ge=1, le=2**20)] = 2048
    """Samples per step, over all trainers."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of the sample order and of the model's initial values."""
    max_bad_lines: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Number of malformed rows that one trainer may skip. One more fails the job."""
    shuffle_rows: Annotated[int, Field(ge=0, le=2**26)] = 2**19
    """Size of the shuffle window, in rows, at least 1024. Data with more rows is shuffled window by window. A trainer
    holds up to two windows in memory. 0: rows are trained in the order of the data, the same in each epoch."""
    hold_out: Annotated[float, Field(ge=0, le=0.5)] = 0
    """The portion of rows at the end of the data that is never trained. `cprjob evaluate` scores the model on it."""


class EarlyStop(SpecModel):
    """Early stopping: training ends if the model does not improve, or is good enough. The result is the best model."""

    metric: StopMetric
    """The metric of the first label. AUC and GAUC should rise, the others should fall. GAUC needs
    groupBy. If the labels or groups of the scored rows leave the metric undefined, the job fails with BadData."""
    patience: Annotated[int, Field(ge=1, le=1000)] | None = None
    """The job ends after this number of consecutive evaluations without a new best one. Default: it does not, and has a
    target."""
    min_improvement: Annotated[float, Field(ge=0, le=1)] = 0
    """An evaluation is the best only if it is better than the best before by more than this."""
    target: Annotated[float, Field(gt=0, le=100)] | None = None
    """The job ends at the first evaluation whose metric is this or better, and its model is the result. Default: there
    is no target."""


class Evaluation(SpecModel):
    """Evaluation on held-out rows while the job trains: AUC, log loss, normalised entropy and calibration."""

    every_samples: Annotated[int, Field(ge=0, le=2**50)] = 0
    """After each multiple of this number of trained samples, all trainers score the model on rows that data.holdOut
    keeps from training, or on those of `uri`. 0: not while the job trains."""
    uri: Uri | None = None
    """Location of data of its own to score the model on, in the format and with the columns of spec.data, or in files
    of JSONLines or Arrow if that is a topic of JSON or Arrow. It must not change during the job. `cprjob evaluate`
    scores all of it."""
    samples: Annotated[int, Field(ge=1, le=2**26)] = 100_000
    """Number of held-out rows to score, from the first one. Each trainer keeps its part of them in memory."""
    group_by: ColumnName | None = None
    """A column of texts or integers, such as the user. The model is scored by its values as well: each of the 20
    largest groups, and GAUC, the mean AUC of all groups weighted by their samples. All trainers then read all rows that
    are scored."""
    early_stop: EarlyStop | None = None
    """Early stopping. Training then waits at each evaluation until the model is saved. Default: all samples are
    trained, and the result is the last model."""
