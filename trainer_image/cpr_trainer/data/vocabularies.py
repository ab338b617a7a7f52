"""Files of values that have a row each in their table: text with a value a line, or Parquet with one column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cpr_contract.model import ModelSpec
from cpr_trainer.data import unpacking
from cpr_trainer.data.arrow_types import as_texts, is_category
from cpr_trainer.data.blocks import Files, is_outage
from cpr_trainer.errors import DataError, TrainerError
from cprjob_serving.vocabulary import Vocabulary

#: By the name of their table.
Vocabularies = dict[str, Vocabulary]

_BOM = b"\xef\xbb\xbf"


def read_vocabularies(model: ModelSpec, files: Files) -> Vocabularies:
    """Return the vocabularies of a model's tables that have a file. Raises DataError, and what `files` raise."""
    found = {}
    for place, table in enumerate(model.tables):
        if table.vocabulary is not None:
            found[table.name] = read_vocabulary(table.vocabulary, files, f"spec.model.tables[{place}].vocabulary.uri")
    return found


def check_rows(model: ModelSpec, vocabularies: Mapping[str, Vocabulary]) -> None:
    """Raise DataError if a table has fewer rows than values, and the default row."""
    for place, table in enumerate(model.tables):
        if table.name in vocabularies and table.rows <= (values := len(vocabularies[table.name])):
            fewer = "" if table.min_count is None else ", or raise vocabulary.build.minCount there"
            raise DataError(
                f"Table {table.name} has {table.rows} rows, and its vocabulary {values} values beside the default row.",
                f"Set spec.model.tables[{place}].rows to {values + 1}{fewer}.",
            )


def read_vocabulary(uri: str, files: Files, field: str) -> Vocabulary:
    """Read a file of values. Raises DataError, which names `field`, and what `files` raise."""
    try:
        with files.open(uri, files.version(uri)) as stream:
            magic = stream.read(4)
            stream.seek(0)
            text = _of_parquet(stream) if magic == b"PAR1" else _of_text(stream, uri)
            found = Vocabulary.of(text)
    except DataError as error:
        raise DataError(error.message, f"Check {field}: a text file with a value a line, or Parquet.") from error
    except (TrainerError, MemoryError):
        raise
    except Exception as error:
        if is_outage(error):
            raise
        raise DataError(
            f"{uri} is no vocabulary: {error}.",
            f"Check {field}: a text file with a value a line, or Parquet with one column, each value once.",
        ) from error
    if not len(found):
        raise DataError(
            f"{uri} is no vocabulary: it has no value, so that all ids would share the default row.",
            f"Check {field}, and whether the file was written to its end.",
        )
    return found


def _of_text(stream: BinaryIO, uri: str) -> bytes:
    """Return the lines of a text, which may be packed. Each ends in a line feed alone."""
    pieces: list[bytes] = []
    size = 0
    with unpacking.Text(stream, uri) as source:
        while piece := source.read(size, unpacking.BLOCK_BYTES):
            pieces.append(piece)
            size += len(piece)
    text = b"".join(pieces).removeprefix(_BOM).replace(b"\r\n", b"\n")
    return text if text.endswith(b"\n") or not text else text + b"\n"


def _of_parquet(stream: BinaryIO) -> bytes:
    """Return the values of the only column as lines. Raises ValueError, ArrowInvalid."""
    table = pq.read_table(stream)
    if table.num_columns != 1:
        raise ValueError(f"it has {table.num_columns} columns instead of one")
    column: Any = table.column(0)
    if not is_category(column.type):
        raise ValueError(f"its column is {column.type}, not text or integers")
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    texts = as_texts(column.combine_chunks())
    if column.null_count or pc.any(pc.match_substring(texts, "\n")).as_py():
        raise ValueError("a value is null, or has a line feed")
    return b"".join(each + b"\n" for each in texts.to_pylist())
