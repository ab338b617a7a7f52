"""`spec.data`: where samples come from, and which columns feed the model."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from cpr_contract.spec import CATEGORICAL_FEATURES, DENSE_FEATURES, MAX_PREDICTED, DataFormat
from cpr_operator.api import rules
from cpr_operator.api.model import SpecModel

#: Data whose columns are mapped.
TEXT_FORMATS = frozenset({"CSV", "TSV"})
TABLE_FORMATS = TEXT_FORMATS | {"Parquet"}

ColumnName = Annotated[str, Field(min_length=1, max_length=128)]


class Columns(SpecModel):
    """The columns that feed the model, by name; by number from 1 in files without a header line."""

    labels: Annotated[tuple[ColumnName, ...], Field(max_length=MAX_PREDICTED)] = ()
    """What is predicted: 0 or 1. Status shows the first one's scores."""
    targets: Annotated[tuple[ColumnName, ...], Field(max_length=MAX_PREDICTED)] = ()
    """Finite numbers that are predicted too; they need a network with a loss of its own."""
    counts: Annotated[tuple[ColumnName, ...], Field(max_length=DENSE_FEATURES)] = ()
    """Numeric features that enter as log(1 + max(x, 0)); where they are missing, as 0."""
    numbers: Annotated[tuple[ColumnName, ...], Field(max_length=DENSE_FEATURES)] = ()
    """Numeric features that enter as they are; where they are missing, as 0."""
    categories: Annotated[tuple[ColumnName, ...], Field(min_length=1, max_length=CATEGORICAL_FEATURES)]
    """Texts or integers, hashed to rows: the t-th feeds the t-th table. Where that pools, lists of them."""
    separator: Annotated[str, Field(max_length=1, pattern=r'^[^"\r\n]$')] | None = None
    """What stands between the ids of a bag in CSV and TSV; Parquet has lists."""

    @field_validator("targets")
    @classmethod
    def _predicted_differ(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if "labels" in info.data:
            predicted = (*info.data["labels"], *value)
            rules.PREDICTED.require(1 <= len(predicted) <= MAX_PREDICTED)
            rules.PREDICTED_ONCE.require(len(set(predicted)) == len(predicted))
        return value

    @field_validator("numbers")
    @classmethod
    def _as_many_as_the_model_takes(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        rules.FEATURES.require(len(info.data.get("counts", ())) + len(value) <= DENSE_FEATURES)
        return value

    @field_validator("counts", "numbers", "categories")
    @classmethod
    def _label_is_no_feature(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        predicted = {*info.data.get("labels", ()), *info.data.get("targets", ())}
        rules.LABEL[str(info.field_name)].require(predicted.isdisjoint(value))
        return value


class Data(SpecModel):
    """The samples to train, and in what portions."""

    format: DataFormat
    """Criteo: the layout of the Criteo click logs, a TSV without header. CSV, TSV, Parquet: tables, mapped by
    `columns`. Text may be plain, gzip or zstd. Synthetic: made by the trainers, with a signal that can be learned;
    needs no data."""
    uri: Annotated[str, Field(max_length=1024, pattern=r"^(s3://[^/]+/.+|file:///.+|/.+)$")] | None = None
    """Where the data lies: s3://bucket/key (read with the snapshot store's endpoint and credentials), file:///path or a
    path mounted in the trainers. A / at the end names all files below; `*`, `?` and `[...]` are wildcards."""
    columns: Columns | None = None
    """Which columns of a CSV, TSV or Parquet table feed the model."""
    header: bool = True
    """Whether each CSV or TSV file begins with a line of names."""
    epochs: Annotated[int, Field(ge=1, le=1000)] | None = None
    """How often the whole data is trained."""
    samples: Annotated[int, Field(ge=1, le=2**50)] | None = None
    """How many samples are trained; data in files is repeated or cut to this length."""
    batch_size: Annotated[int, Field(ge=1, le=2**20)] = 2048
    """Samples of one step, over all trainers."""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Seed of the order of samples and of the model's first values."""
    max_bad_lines: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Rows that one trainer may skip because they cannot be read as the format says; one more fails the job."""
    shuffle_rows: Annotated[int, Field(ge=1024, le=2**26)] = 2**19
    """Where there are more rows, they are shuffled in windows of so many; a trainer holds up to two in memory."""
    hold_out: Annotated[float, Field(ge=0, le=0.5)] = 0
    """The portion of the rows, the last ones, that is never trained: `cprjob evaluate` scores it."""

    @field_validator("uri")
    @classmethod
    def _uri_as_format_says(cls, value: str | None, info: ValidationInfo) -> str | None:
        rules.FILES_URI.require(info.data.get("format", "Synthetic") == "Synthetic" or value is not None)
        rules.SYNTHETIC_URI.require(info.data.get("format") != "Synthetic" or value is None)
        return value

    @field_validator("columns")
    @classmethod
    def _columns_as_format_says(cls, value: Columns | None, info: ValidationInfo) -> Columns | None:
        if "format" in info.data:
            rules.COLUMNS.require((info.data["format"] in TABLE_FORMATS) == (value is not None))
            has_separator = value is not None and value.separator is not None
            rules.SEPARATOR.require(not has_separator or info.data["format"] in TEXT_FORMATS)
        return value

    @field_validator("header")
    @classmethod
    def _header_of_text(cls, value: bool, info: ValidationInfo) -> bool:  # noqa: FBT001 -- pydantic calls it
        rules.HEADER.require(value or info.data.get("format") in TEXT_FORMATS)
        return value

    @field_validator("samples")
    @classmethod
    def _epochs_or_samples(cls, value: int | None, info: ValidationInfo) -> int | None:
        if "epochs" in info.data:
            epochs = info.data["epochs"]
            rules.SYNTHETIC.require(info.data.get("format") != "Synthetic" or epochs is None)
            rules.EPOCHS_OR_SAMPLES.require((epochs is None) != (value is None))
        return value
