"""The mapping by name from an anchor of other tables, another network or other values: pure decisions, and refusals.

A refusal names the field of the job that decides it, and a value that would be accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from cpr_contract.manifests import DenseManifest, SavedModel, SavedTable, SavedTensor
from cpr_contract.model import ModelSpec, TableSpec
from cpr_contract.spec import ByNameSpec, Resized, TableSourceSpec
from cpr_trainer.checkpoint.format.documents import LayoutError
from cpr_trainer.embedding.dynamic.pages import capacity_of
from cprjob_serving.vocabulary import Vocabulary

_FIELD = "spec.restoreFrom"
#: The most names in a message.
_SHOWN = 8
#: The most copies of a row: each copy costs a search in every part of the anchor.
_MOST_COPIES = 1024


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a table's rows: row r is row r of the anchor's table `table`, which has `rows` rows.

    If they are `repeated`, row r is row r mod `rows`; else rows from `rows` on have their first values. If they are
    `inserted`, they become entries of a dynamic table, at any of its slots.
    """

    table: int
    rows: int
    repeated: bool = False
    inserted: bool = False


@dataclass(frozen=True, slots=True)
class TableMapping:
    """The source of each table, None for those that start fresh; and the tables of the anchor, with their seed."""

    sources: tuple[Source | None, ...]
    tables: tuple[SavedTable, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class DenseParts:
    """The parts of a dense network's state; `optimizer` determines the state of each parameter."""

    optimizer: str
    parameters: tuple[SavedTensor, ...]
    buffers: tuple[SavedTensor, ...]


@dataclass(frozen=True, slots=True)
class DenseMapping:
    """The pieces of an anchor's flat dense state to take, as (first there, first here, size), and the buffers."""

    pieces: tuple[tuple[int, int, int], ...]
    buffers: tuple[str, ...]


def saved_model(manifest: DenseManifest, key: str) -> SavedModel:
    """Return the model in an anchor's manifest. Raises LayoutError for one of an older version without it."""
    if manifest.model is None:
        raise LayoutError(
            f"{_FIELD}: {key} was saved by a version that did not record tables and parameters by name.",
            "Name an anchor of a job that this version has trained. With the same model, name this one in "
            "spec.snapshots.restoreFrom.",
        )
    return manifest.model


def sources_of(model: ModelSpec) -> tuple[Source, ...]:
    """Return the sources of a model's tables in an anchor of the same tables."""
    return tuple(Source(place, table.rows) for place, table in enumerate(model.tables))


def map_tables(saved: SavedModel, model: ModelSpec, rules: ByNameSpec, key: str) -> TableMapping:
    """Return the source of each table's rows. `key` is the anchor's. Raises LayoutError.

    A table of the anchor that `map` names goes only to the table in `map`.
    """
    places = {table.name: place for place, table in enumerate(saved.tables)}
    mapped = {each.table: each for each in rules.map}
    elsewhere = {each.source for each in rules.map}
    sources: list[Source | None] = []
    missing: list[str] = []
    for place, table in enumerate(model.tables):
        requested = mapped.get(table.name, TableSourceSpec(table.name, table.name))
        there = None if table.name in elsewhere and table.name not in mapped else places.get(requested.source)
        if there is None and table.name in mapped:
            raise _refusal(
                f"{_FIELD}.map: table {table.name} shall start from {requested.source}, and {key} has no such table",
                f"name one of its tables there: {_some(places)}",
            )
        if there is None:
            missing.append(table.name)
            sources.append(None)
        else:
            resized = requested.resized or rules.resized
            sources.append(_source(model, place, there, saved.tables[there], resized))
    if missing and rules.missing == "Fail":
        raise _refusal(
            f"{_FIELD}.missing: {key} has no table {_some(missing)}",
            "set it to Initialise to start what is missing from first values, or name the anchor's tables in "
            f"{_FIELD}.map",
        )
    taken = {source.table for source in sources if source is not None}
    extra = [table.name for place, table in enumerate(saved.tables) if place not in taken]
    if extra and rules.extra == "Fail":
        raise _refusal(
            f"{_FIELD}.extra: {key} also has table {_some(extra)}, which no table of this job takes",
            f"set it to Ignore to leave out what is extra, or name the anchor's tables in {_FIELD}.map",
        )
    return TableMapping(tuple(sources), saved.tables, saved.seed)


def map_dense(old: DenseParts, new: DenseParts, rules: ByNameSpec, key: str) -> DenseMapping:
    """Return the parts of an anchor's dense state with the same name and shape in this network.

    A part with another shape is missing here, and extra there. Raises LayoutError.
    """
    if old.optimizer != new.optimizer:
        raise _refusal(
            f"spec.model.denseOptimizer: {key} has a dense state of {old.optimizer}, this job wants one of "
            f"{new.optimizer}",
            f"give this job that optimizer, or set {_FIELD}.dense to Initialise",
        )
    known, requested = {*old.parameters, *old.buffers}, {*new.parameters, *new.buffers}
    missing = [_shown(each) for each in (*new.parameters, *new.buffers) if each not in known]
    extra = [_shown(each) for each in (*old.parameters, *old.buffers) if each not in requested]
    if missing and rules.missing == "Fail":
        raise _refusal(
            f"{_FIELD}.missing: the dense network of {key} has no {_some(missing)}",
            "set it to Initialise to start what is missing from first values",
        )
    if extra and rules.extra == "Fail":
        raise _refusal(
            f"{_FIELD}.extra: the dense network of {key} also has {_some(extra)}",
            "set it to Ignore to leave out what is extra",
        )
    there = dict(_offsets(old.parameters))
    pieces = ((there[each], first, each.size) for each, first in _offsets(new.parameters) if each in there)
    saved = set(old.buffers)
    return DenseMapping(tuple(pieces), tuple(each.name for each in new.buffers if each in saved))


def with_vocabularies(saved: SavedModel, vocabularies: Mapping[str, Vocabulary]) -> SavedModel:
    """Return the model of a save with the vocabularies of its tables, which are given by the table's name."""
    tables = (
        replace(table, vocabulary=vocabularies[table.name].digest, values=len(vocabularies[table.name]))
        if table.name in vocabularies
        else table
        for table in saved.tables
    )
    return replace(saved, tables=tuple(tables))


def check_vocabularies(
    saved: SavedModel | None, model: ModelSpec, rules: ByNameSpec | None, found: Mapping[str, Vocabulary], key: str
) -> None:
    """Raise LayoutError if a table would take rows of other values. `key` is the anchor's.

    A vocabulary may extend that of the anchor, because common values have the same rows. Without `rules` all tables are
    those of the anchor.
    """
    tables = {} if saved is None else {table.name: table for table in saved.tables}
    sources = {} if rules is None else {each.table: each.source for each in rules.map}
    for place, table in enumerate(model.tables):
        there, mine = tables.get(sources.get(table.name, table.name)), found.get(table.name)
        if there is None or mine is None or not there.vocabulary:
            continue
        if len(mine) < there.values or mine.digest_of_first(there.values) != there.vocabulary:
            raise LayoutError(
                f"spec.model.tables[{place}].vocabulary: table {there.name} of {key} has other values, or in another "
                f"order, so its rows are other ids'.",
                f"Name a file (uri) that begins with the {there.values} values that it was trained with, in their "
                "order, which cprjob export writes, and has new ones after them; or give the table another name, to "
                "start it from first values.",
            )


def _source(model: ModelSpec, place: int, there: int, saved: SavedTable, resized: Resized) -> Source:
    """Return the source of table `place` in the anchor's table `there`. Raises LayoutError if that does not fit."""
    table, field = model.tables[place], f"spec.model.tables[{place}]"
    fresh = f"or give {table.name} another name, to start it from first values ({_FIELD}.missing: Initialise)"
    found = f"table {saved.name} of the anchor"
    dim, optimizer = model.table_dims[place], model.table_optimizers[place].kind
    is_dynamic = table.dynamic is not None
    # The ids of these rows are known, and so are their keys.
    keyed = is_dynamic and (saved.ids == "RowNumber" or (saved.ids == "Vocabulary" and bool(saved.vocabulary)))
    if saved.ids != table.id_scheme and not keyed:
        raise _refusal(
            f"{field}.ids: {found} has ids of {saved.ids}, {table.name} has {table.id_scheme}, "
            f"{_difference_of_ids(table, saved)}",
            f"set it to {saved.ids}, {fresh}",
        )
    if saved.dim != dim:
        raise _refusal(
            f"{field}.dim: {found} has {saved.dim}, {table.name} has {dim}", f"set it to {saved.dim}, {fresh}"
        )
    if saved.optimizer != optimizer:
        raise _refusal(
            f"{field}.optimizer: {found} was trained by {saved.optimizer}, {table.name} has {optimizer}",
            f"set its kind to {saved.optimizer}, {fresh}",
        )
    if keyed:
        return Source(there, saved.rows, inserted=True)
    if saved.rows == table.rows or (is_dynamic and capacity_of(saved.rows) == capacity_of(table.rows)):
        return Source(there, saved.rows)
    refusal = _refusal_of_pages(saved, resized) if is_dynamic else _refusal_of_rows(table, saved, resized)
    if refusal:
        what, remedy = refusal
        raise _refusal(
            f"{field}.rows: {found} has {saved.rows}, {table.name} has {table.rows}{what}", f"{remedy}, {fresh}"
        )
    rehashed = resized == "Rehash"
    return Source(there, saved.rows, repeated=rehashed and not is_dynamic, inserted=is_dynamic)


def _difference_of_ids(table: TableSpec, saved: SavedTable) -> str:
    """Return why a table cannot start from one with other ids."""
    if table.dynamic is None or saved.is_dynamic:
        return "so its rows are other ids'"
    if saved.ids == "Vocabulary":
        return "and its values are not recorded, so no row has a key"
    return "and ids may share a row, so no row has a key"


def _refusal_of_pages(saved: SavedTable, resized: Resized) -> tuple[str, str] | None:
    """Return why a dynamic table cannot start from one of another capacity, and the remedy; None if it can."""
    match resized:
        case "Fail":
            return "", f"set it to {saved.rows}, or {_FIELD}.resized to Rehash"
        case "Truncate":
            return ", and its rows belong to ids for a time", f"set {_FIELD}.resized to Rehash"
        case "Rehash":
            return None
        case _:
            assert_never(resized)


def _refusal_of_rows(table: TableSpec, saved: SavedTable, resized: Resized) -> tuple[str, str] | None:
    """Return why a table cannot start from one with another number of rows, and the remedy; None if it can."""
    numbered, multiple = table.ids in {"RowNumber", "Vocabulary"}, table.rows % saved.rows == 0
    match resized:
        case "Fail":
            how = "Truncate" if numbered else f"Rehash with a multiple of {saved.rows}"
            return "", f"set it to {saved.rows}, or {_FIELD}.resized to {how}"
        case "Rehash" if numbered:
            why = f", and its ids are {table.ids}, so no other row stands for an id"
            return why, f"set {_FIELD}.resized to Truncate"
        case "Rehash" if not multiple:
            why = ", which is not a multiple of it, so ids of one row would have come from several"
            return why, f"set it to a multiple of {saved.rows}"
        case "Rehash" if table.rows // saved.rows > _MOST_COPIES:
            why = f", which is more than {_MOST_COPIES} times as many"
            return why, f"set it to at most {_MOST_COPIES * saved.rows}"
        case "Truncate" if not numbered:
            why = ", and its ids are hashed, so every id would have another row"
            return why, f"set {_FIELD}.resized to Rehash and the rows to a multiple of {saved.rows}"
        case "Rehash" | "Truncate":
            return None
        case _:
            assert_never(resized)


def _offsets(tensors: Iterable[SavedTensor]) -> list[tuple[SavedTensor, int]]:
    """Return parameters with where they begin in the flat state."""
    found, first = [], 0
    for each in tensors:
        found.append((each, first))
        first += each.size
    return found


def _shown(tensor: SavedTensor) -> str:
    return f"{tensor.name} {list(tensor.shape)}"


def _some(names: Iterable[str]) -> str:
    every = tuple(names)
    return ", ".join(every[:_SHOWN]) + (", ..." if len(every) > _SHOWN else "")


def _refusal(what: str, remedy: str) -> LayoutError:
    return LayoutError(f"{what}.", f"{remedy[0].upper()}{remedy[1:]}.")
