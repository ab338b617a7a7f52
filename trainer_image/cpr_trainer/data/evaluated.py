"""Which rows a job's model is scored on: a part of its data that is never trained, or data of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cpr_contract.spec import DataSpec, JobSpec
from cpr_trainer.data.batch import Dataset
from cpr_trainer.data.blocks import Files, Index
from cpr_trainer.data.order import held_out
from cpr_trainer.data.source import Find, FindVocabularies, open_dataset
from cpr_trainer.data.vocabularies import Vocabularies


def data_of_its_own(job: JobSpec) -> DataSpec | None:
    """Return the data that a job is scored on, None if that is a part of what it trains."""
    uri = None if job.evaluation is None else job.evaluation.uri
    return None if uri is None else replace(job.data, uri=uri, hold_out=0.0)


def open_scored(
    job: JobSpec,
    files: Files,
    pinned: Callable[[Find], Sequence[Index]] | None = None,
    vocabularies: Callable[[FindVocabularies], Vocabularies] | None = None,
) -> Dataset:
    """Return the data that a job is scored on, with groups. Raises as `open_dataset` does."""
    group = None if job.evaluation is None else job.evaluation.group_by
    return open_dataset(data_of_its_own(job) or job.data, job.model, files, pinned, group, vocabularies)


def scored_rows(job: JobSpec, rows: int) -> range:
    """Return which of so many rows, of the data that a job is scored on, are scored."""
    return held_out(job.data, rows) if data_of_its_own(job) is None else range(rows)
