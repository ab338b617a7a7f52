"""Opens the data of a job: the samples that it trains, and those that it is evaluated on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice

from cpr_contract import CONTRACT_VERSION
from cpr_contract.model import ModelSpec
from cpr_contract.pinned_data import Constant, DataManifest, TableVersion
from cpr_contract.reports import IDS_SPELLED_TWICE, Problem
from cpr_contract.spec import DataFormat, DataSpec, JobSpec, KafkaSpec
from cpr_trainer.data.arrivals import Arrivals
from cpr_trainer.data.arriving_files import ArrivingFiles
from cpr_trainer.data.arriving_tables import ArrivingTable
from cpr_trainer.data.batches import arrow_format, orc_format
from cpr_trainer.data.dataset import Dataset
from cpr_trainer.data.decode import cells_of
from cpr_trainer.data.dialect import dialect_of
from cpr_trainer.data.files import CORRECT_COLUMNS, Block, Format, Index, SourceFile, content_errors
from cpr_trainer.data.json_lines import JsonLinesFormat
from cpr_trainer.data.kafka.arriving_messages import ArrivingMessages
from cpr_trainer.data.kafka.message_format import MessageFormat
from cpr_trainer.data.kafka.topic import Topic
from cpr_trainer.data.kafka.values import ArrowValues, JsonValues, Values
from cpr_trainer.data.order import held_out
from cpr_trainer.data.parquet import ParquetFormat
from cpr_trainer.data.reader import TableDataset, index_each, index_files
from cpr_trainer.data.schema import Columns, check_bags, check_fixed_layout, check_tables, columns_of
from cpr_trainer.data.synthetic import SyntheticDataset
from cpr_trainer.data.tables import TableFormat, open_log
from cpr_trainer.data.text import TextFormat
from cpr_trainer.data.user import UserFormat
from cpr_trainer.data.vocabularies import Vocabularies, count_values, find_vocabularies
from cpr_trainer.data.whole_numbers import SPELLINGS_REMEDY, Spellings, spelling_matters
from cpr_trainer.errors import DataError
from cpr_trainer.runtime import Access
from cpr_trainer.store import Uris, Version
from cprjob_serving.vocabulary import Vocabulary

#: Finds and indexes the files of a job's data. Raises DataError, and what `Uris` raises.
Find = Callable[[], Sequence[Index]]
#: Finds the vocabularies of a job's tables, and calls its argument between blocks of data. Raises as `Find`.
FindVocabularies = Callable[[Callable[[], None]], Vocabularies]

#: Readers of formats without settings of their own.
_FORMATS: dict[str, Callable[[Uris, Columns | None], Format]] = {
    "Parquet": ParquetFormat,
    "Arrow": arrow_format,
    "ORC": orc_format,
    "JSONLines": JsonLinesFormat,
    "Delta": partial(TableFormat, "Delta"),
    "Iceberg": partial(TableFormat, "Iceberg"),
}
_LOG = logging.getLogger(__name__)
_NO_ACCESS = Access()
_SPELLING_FILES = 8
_MAX_SHOWN = 3


def files_of(job: JobSpec, store_access: Access = _NO_ACCESS, data_access: Access = _NO_ACCESS) -> Uris:
    """Return the storage of a job's data: the data's own store, otherwise the job's.

    Only the access to the store that is read is used, so that neither store gets credentials of the other.
    """
    if job.data.format == "Kafka":
        return Uris(job.snapshots.store, *store_access, topic_access=data_access)
    if job.data.store is None:
        return Uris(job.snapshots.store, *store_access)
    return Uris(job.data.store, *data_access, field="data.store")


def log_problem(problem: Problem) -> None:
    """Log a problem that does not stop the training."""
    _LOG.warning("%s %s", problem.message, problem.remedy)


def open_dataset(  # noqa: PLR0913, PLR0917 -- the data, and its frozen parts
    data: DataSpec,
    model: ModelSpec,
    files: Uris,
    frozen: Callable[[Find], Sequence[Index]] | None = None,
    group: str | None = None,
    vocabularies: Callable[[FindVocabularies], Vocabularies] | None = None,
    warn: Callable[[Problem], None] = log_problem,
) -> Dataset:
    """Return the samples that `data` names, with ids for each feature of `model`, and with their values of `group`.

    `frozen` and `vocabularies` return what was found earlier, or call their argument to find it now. `warn` gets
    problems of data that is found now. Raises DataError for data that cannot be used, and whatever `files`, `frozen`
    and `vocabularies` raise.
    """
    check_bags(data, model)
    if data.format == "Synthetic":
        if data.samples is None:
            raise DataError("Synthetic data has no length of its own.", "State data.samples.")
        check_fixed_layout(data, model)
        return SyntheticDataset(data.samples, data.seed, model.tables)
    columns = replace(columns_of(data, model), group=group)
    check_tables(model.tables, len(model.tables) if model.features else len(columns.inputs))
    form = format_of(data, columns, files)

    def find() -> Sequence[Index]:
        found = index_data(data, form, files)
        # Another format, except for code of the user's: its open files are closed with it.
        other = form if data.entrypoint is not None else format_of(data, columns, files)
        if warnings := _spelling_warnings(columns, other, found):
            more = f" {len(warnings) - _MAX_SHOWN} more columns do so." if len(warnings) > _MAX_SHOWN else ""
            warn(Problem(IDS_SPELLED_TWICE, " ".join(warnings[:_MAX_SHOWN]) + more, SPELLINGS_REMEDY))
        return found

    indices = find() if frozen is None else frozen(find)
    if any(table.ids == "Vocabulary" for table in model.tables):
        find_all = partial(find_vocabularies, data, model, columns, files, form, indices)
        found = find_all(lambda: None) if vocabularies is None else vocabularies(find_all)
        columns = with_vocabularies(columns, found)
    return TableDataset(data, columns, model, form, indices)


def format_of(data: DataSpec, columns: Columns | None, files: Uris) -> Format:
    """Return a reader of some columns of `data`, or of all (None). Raises DataError and OSError of the user's code."""
    if data.entrypoint is not None:
        return UserFormat(data.entrypoint, data.uri, columns)
    if data.format == "Kafka":
        return MessageFormat(topic_of(data, files), values_of(data, columns, files))
    if (make := _FORMATS.get(data.format)) is not None:
        return make(files, columns)
    return TextFormat(files, dialect_of(data), columns)


def arrivals_of(data: DataSpec, columns: Columns, files: Uris) -> Arrivals:
    """Return the source of data that arrives. Raises as `format_of` does."""
    assert data.uri is not None, "data that arrives has a place"
    if data.format == "Kafka":
        return ArrivingMessages(topic_of(data, files), values_of(data, columns, files))
    form = format_of(data, columns, files)
    if isinstance(form, TableFormat):
        return ArrivingTable(open_log(data.format, data.uri, data.version, files), form, data.uri, columns.used)
    return ArrivingFiles(data.uri, files, lambda uris: index_each(uris, form))


def topic_of(data: DataSpec, files: Uris) -> Topic:
    """Return the topic of `data`, before a connection is made. Raises DataError without the client of Kafka."""
    assert data.uri is not None, "a topic has a place"
    try:
        from cpr_trainer.data.kafka.client import KafkaTopic  # noqa: PLC0415 -- an extra of its own
    except ModuleNotFoundError as error:
        raise DataError(
            f"data.format Kafka needs the Python package {error.name}, which the image lacks.",
            "Add it to the image: pip install 'cprjob[kafka]'.",
        ) from error
    return KafkaTopic(data.uri, data.kafka or KafkaSpec(), files.topic_access)


def values_of(data: DataSpec, columns: Columns | None, files: Uris) -> Values:
    """Return the decoder of the values of a topic."""
    form = (data.kafka or KafkaSpec()).value_format
    return JsonValues(files, columns) if form == "JSON" else ArrowValues(columns)


def index_data(data: DataSpec, form: Format, files: Uris) -> Sequence[Index]:
    """Find the blocks of `data`. Raises DataError, and what `files` raise."""
    if data.entrypoint is not None:
        return index_files((data.entrypoint,), form)
    return index_files(_find_files(data, form, files), form)


def list_files(data: DataSpec, files: Uris) -> Sequence[str]:
    """Return the URIs of the present files of `data`; those of its version for a table that has one stated.

    Raises as `index_data` does.
    """
    return _find_files(data, format_of(data, None, files), files)


def _find_files(data: DataSpec, form: Format, files: Uris) -> Sequence[str]:
    if data.uri is None:
        raise DataError(f"{data.format} data needs a place to be read from.", "State data.uri.")
    if data.format == "Kafka":
        raise DataError(f"{data.uri} is a topic, which has no end of its own.", "State data.follow to train it.")
    return form.find(data.uri, data.version) if isinstance(form, TableFormat) else files.find(data.uri)


def _spelling_warnings(columns: Columns, form: Format, indices: Sequence[Index]) -> list[str]:
    """Return warnings about columns that spell ids in two ways, by the first blocks of up to 8 files."""
    inputs = [each for each in columns.inputs if spelling_matters(each)]
    found = {each.column: Spellings() for each in inputs}
    with_rows = [index for index in indices if index.blocks] if inputs else []
    for index in with_rows[:: -(-len(with_rows) // _SPELLING_FILES) or 1]:
        block = index.blocks[0]
        table = form.parse(block, form.fetch(block)).table
        with content_errors(block.uri, CORRECT_COLUMNS):
            for each in inputs:
                found[each.column].add(count_values(cells_of(table, each, columns.separator))["value"].combine_chunks())
    warnings = (spellings.warning(name) for name, spellings in found.items())
    return [each for each in warnings if each is not None]


def with_vocabularies(columns: Columns, vocabularies: Mapping[str, Vocabulary]) -> Columns:
    """Return columns with the vocabularies of their tables, by the name of these."""
    inputs = tuple(replace(each, vocabulary=vocabularies.get(each.table.name)) for each in columns.inputs)
    return replace(columns, inputs=inputs)


def evaluation_data(job: JobSpec) -> DataSpec | None:
    """Return the separate data that a job is evaluated on, None if that is a part of the training data.

    It has the format of the training data, or is in files of the values of messages.
    """
    uri = None if job.evaluation is None else job.evaluation.uri
    if uri is None:
        return None
    own = replace(job.data, uri=uri, hold_out=0.0, version=None)
    if own.format == "Kafka":
        files: DataFormat = "JSONLines" if (own.kafka or KafkaSpec()).value_format == "JSON" else "Arrow"
        return replace(own, format=files)
    return own


def open_evaluation(
    job: JobSpec,
    files: Uris,
    frozen: Callable[[Find], Sequence[Index]] | None = None,
    vocabularies: Callable[[FindVocabularies], Vocabularies] | None = None,
) -> Dataset:
    """Return the data that a job is evaluated on, with groups. Raises as `open_dataset` does."""
    group = None if job.evaluation is None else job.evaluation.group_by
    return open_dataset(evaluation_data(job) or job.data, job.model, files, frozen, group, vocabularies)


def evaluation_rows(job: JobSpec, rows: int) -> range:
    """Return the rows that a job is evaluated on, out of the `rows` of `open_evaluation`."""
    return held_out(job.data, rows) if evaluation_data(job) is None else range(rows)


def manifest_of_indices(
    job_uid: str,
    uri: str,
    indices: Sequence[Index],
    *,
    evaluates: bool = False,
    table: TableVersion | None = None,
) -> DataManifest:
    """Return the document that freezes the files of `uri` for a job. It takes 120 bytes a file and 25 a block.

    table: the version of their table, by default that of the first file.
    """
    files = [index.file for index in indices]
    blocks = [block for index in indices for block in index.blocks]
    columns = {file.columns: None for file in files}  # Most files have the same.
    places = {names: place for place, names in enumerate(columns)}
    constants: dict[tuple[Constant, ...], int] = {}
    for file in files:
        if file.table is not None:
            constants.setdefault(file.constants, len(constants))
    return DataManifest(
        contract=CONTRACT_VERSION,
        job_uid=job_uid,
        uri=uri,
        uris=tuple(file.uri for file in files),
        sizes=tuple(file.version.size_bytes for file in files),
        tags=tuple(file.version.tag for file in files),
        in_turn=tuple(index.sequential for index in indices),
        columns_of=tuple(places[file.columns] for file in files),
        blocks=tuple(len(index.blocks) for index in indices),
        columns=tuple(columns),
        block_rows=tuple(block.rows for block in blocks),
        block_starts=tuple(block.start for block in blocks),
        block_sizes=tuple(block.size for block in blocks),
        evaluates=evaluates,
        table=table or (files[0].table if files else None),
        constants=tuple(constants),
        constants_of=tuple(constants[file.constants] for file in files if file.table is not None),
    )


def indices_of_manifest(manifest: DataManifest) -> list[Index]:
    """Return the indices that `manifest_of_indices` froze. Raises ValueError if the lists do not fit together."""
    m = manifest
    if sum(m.blocks) != len(m.block_rows):
        raise ValueError(f"{len(m.block_rows)} blocks where the files have {sum(m.blocks)}")
    blocks = zip(m.block_rows, m.block_starts, m.block_sizes, strict=True)
    constants = [() for _ in m.uris] if m.table is None else [m.constants[place] for place in m.constants_of]
    indices = []
    for uri, size, tag, sequential, columns, count, values in zip(
        m.uris, m.sizes, m.tags, m.in_turn, m.columns_of, m.blocks, constants, strict=True
    ):
        file = SourceFile(uri, Version(size, tag), m.columns[columns], m.table, values)
        own = list(islice(blocks, count))
        firsts = accumulate((rows for rows, _, _ in own), initial=0)
        indices.append(
            Index(file, tuple(Block(file, first, *each) for first, each in zip(firsts, own, strict=False)), sequential)
        )
    return indices
