"""Checks that rows of an anchor are of the same values as those of a job: pure decisions, and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cpr_contract.manifests import SavedModel
from cpr_contract.model import ModelSpec
from cpr_contract.spec import ByNameSpec
from cpr_trainer.checkpoint.format.documents import LayoutError
from cprjob_serving.vocabulary import Vocabulary


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
