"""The feature transform of a model (`transform.json`): from raw columns to numeric features and rows of tables."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

import numpy as np

from cprjob_serving.hashes import Cells, Floats, Ints, hashes
from cprjob_serving.keyed_rows import Default
from cprjob_serving.vocabulary import Vocabulary

#: Versions of the document. A reader refuses any other. 1 has no `integers`, and 1 and 2 have no `default`.
VERSION, VERSION_WITH_INTEGERS, VERSION_WITH_KEYS = 1, 2, 3

Pooling = Literal["Sum", "Mean", "None"]
#: Columns by name: a value for each sample, None if it is absent. The values of bags are lists or texts.
Columns = Mapping[str, Sequence[Any]]

_LARGEST = float(np.finfo(np.float32).max)
_DEFAULT_ROW = 0
_DIGITS = re.compile(rb"[0-9]{1,18}")
_INTEGER_OR_ABSENT = re.compile(rb"(-?[0-9]+)?")
#: A whole number in a text, in the syntax of RE2 and of Python: its sign, and its digits without leading zeros.
WHOLE_NUMBER = r"[ \t]*\+?(-?)0*([0-9]+)(?:\.0*)?[ \t]*"
#: Larger floating point numbers stand for more than one whole number.
LARGEST_WHOLE = 2.0**53
_WHOLE = re.compile(WHOLE_NUMBER.encode())
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Numeric:
    """A column of numbers x. `Count` is log(1 + max(x, 0)), `Number` is x."""

    column: str
    kind: Literal["Count", "Number"]


@dataclass(frozen=True, slots=True)
class Table:
    """An embedding table: vectors of `dim` values in `file`, and the mapping of ids to its rows.

    `seed` is for the ids `XXH64`, `Murmur3` and `Dynamic`, `outOfRange` for `RowNumber` and `Vocabulary`. `vocabulary`
    is the file of the values, a line each: the first one has row 1. A table with the ids `Dynamic`, and no other, has a
    `default`: the vectors are those of keys, the XXH64 of ids, and `rows` is its capacity.
    """

    name: str
    file: str
    rows: int
    dim: int
    ids: Literal["CPR64", "XXH64", "Murmur3", "RowNumber", "Vocabulary", "Dynamic"]
    seed: int
    outOfRange: Literal["Fail", "DefaultRow"]  # noqa: N815 -- as the document names it
    vocabulary: str | None = None
    default: Default | None = None


@dataclass(frozen=True, slots=True)
class Feature:
    """An input of a network: vectors of `table` for the ids in `column`.

    Without a `pooling` a sample has exactly one id. `Sum` and `Mean` make one vector of any number of ids, `None` is a
    sequence. If there are more than `maxLength` ids, the last ones are used. `weights` is a column with a weight for
    each id. `integers`: ids are whole numbers, in any notation.
    """

    name: str
    column: str
    table: str
    pooling: Pooling | None = None
    maxLength: int | None = None  # noqa: N815
    weights: str | None = None
    integers: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of its tensors in the network's inputs."""
        if self.pooling != "None":
            return (self.name,)
        return (self.name, f"{self.name}.lengths", *([f"{self.name}.weights"] if self.weights else []))


@dataclass(frozen=True, slots=True)
class Transform:
    """From the columns of raw data to the inputs of a network.

    The numeric features are those of `numeric`, then zeros up to `width`. `separator` stands between the ids of a bag,
    and between their weights, in text. `outputs` are the labels and targets, one logit each.
    """

    width: int
    numeric: tuple[Numeric, ...]
    tables: tuple[Table, ...]
    features: tuple[Feature, ...]
    outputs: tuple[str, ...]
    separator: str | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the network's inputs, in their order."""
        return ("dense", *(name for feature in self.features for name in feature.inputs))

    def to_json(self) -> str:
        """Return the document. `inputs` is for programs in other languages."""
        document = asdict(self)
        version = VERSION_WITH_INTEGERS if any(feature.integers for feature in self.features) else VERSION
        version = VERSION_WITH_KEYS if any(table.default for table in self.tables) else version
        for feature in document["features"] if version < VERSION_WITH_INTEGERS else ():
            del feature["integers"]
        for table in document["tables"] if version < VERSION_WITH_KEYS else ():
            del table["default"]
        return json.dumps({"version": version, **document, "inputs": self.inputs}, indent=2) + "\n"

    @classmethod
    def of_json(cls, text: str) -> Self:
        """Read the document. Raises ValueError if it is of another version."""
        found: dict[str, Any] = json.loads(text)
        if found.get("version") not in {VERSION, VERSION_WITH_INTEGERS, VERSION_WITH_KEYS}:
            raise ValueError(
                f"transform.json is of version {found.get('version')}; this cprjob_serving reads "
                f"{VERSION} to {VERSION_WITH_KEYS}"
            )
        return cls(
            found["width"],
            tuple(Numeric(**each) for each in found["numeric"]),
            tuple(_table_of(each) for each in found["tables"]),
            tuple(Feature(**each) for each in found["features"]),
            tuple(found["outputs"]),
            found["separator"],
        )


def _table_of(document: dict[str, Any]) -> Table:
    default = document.get("default")
    return Table(**document | {"default": default and Default(**default)})


class EncodeError(ValueError):
    """A value that no sample may have. The message names column and sample, and the expected value."""


@dataclass(frozen=True, slots=True, eq=False)
class Ids:
    """The rows that a feature uses, sample after sample.

    rows: int64 [k]; those of a table with the ids `Dynamic` are the bits of keys, which are uint64. lengths: int64 [n],
    which add up to k; None if each sample has one. weights: float32 [k]; None: all are 1.
    """

    rows: Ints
    lengths: Ints | None = None
    weights: Floats | None = None


def dense_of(transform: Transform, columns: Columns) -> Floats:
    """Return the numeric features, float32 [n, width]. Raises EncodeError."""
    samples = _samples(transform, columns)
    dense = np.zeros((samples, transform.width), np.float32)
    for place, each in enumerate(transform.numeric):
        values = np.array(
            [_number(value, each.column, at) for at, value in enumerate(columns[each.column])], np.float64
        )
        dense[:, place] = np.log1p(np.maximum(values, 0)) if each.kind == "Count" else values
    return dense


def ids_of(
    transform: Transform, feature: Feature, columns: Columns, vocabularies: Mapping[str, Vocabulary] | None = None
) -> Ids:
    """Return the rows of one feature. vocabularies: by the name of their table. Raises EncodeError."""
    known = {} if vocabularies is None else vocabularies
    table = next(each for each in transform.tables if each.name == feature.table)
    _samples(transform, columns)
    cells = columns[feature.column]
    if feature.pooling is None:
        return Ids(_rows(table, list(cells), feature, lambda place: place, known))
    bags = [_values(cell, transform.separator) for cell in cells]
    present = [[place for place, each in enumerate(bag) if each is not None and each not in {"", b""}] for bag in bags]
    used = [places[-(feature.maxLength or len(places)) :] for places in present]
    lengths = np.array([len(places) for places in used], np.int64)
    samples = np.repeat(np.arange(len(bags)), lengths)
    ids = [bag[place] for bag, places in zip(bags, used, strict=True) for place in places]
    rows = _rows(table, ids, feature, lambda place: int(samples[place]), known)
    if feature.weights is None:
        return Ids(rows, lengths)
    # As in training, a weight beside an id that `maxLength` drops has to be a number.
    weights = _weights(feature.weights, columns, bags, present, transform.separator)
    ends = np.cumsum([len(places) for places in present])
    return Ids(rows, lengths, weights[np.repeat(ends - np.cumsum(lengths), lengths) + np.arange(len(rows))])


def _samples(transform: Transform, columns: Columns) -> int:
    """Return the number of samples. Raises EncodeError if a column is missing, or longer than others."""
    used = [each.column for each in transform.numeric]
    for feature in transform.features:
        used += [feature.column, *([feature.weights] if feature.weights else [])]
    if missing := sorted({name for name in used if name not in columns}):
        raise EncodeError(f"the model needs the columns {', '.join(missing)}; give them, or transform.json's names")
    lengths = {name: len(columns[name]) for name in used}
    if len(set(lengths.values())) > 1:
        raise EncodeError(f"columns have different numbers of samples: {lengths}")
    return next(iter(lengths.values()), 0)


def _rows(
    table: Table, ids: list[Any], feature: Feature, sample: Callable[[int], int], vocabularies: Mapping[str, Vocabulary]
) -> Ints:
    """Return the row of each id, int64 [k], or its key in a dynamic table: each different id is looked up once."""
    column, text_of = feature.column, _whole if feature.integers else _text
    try:
        texts = [text_of(each) for each in ids]
    except EncodeError as error:
        raise EncodeError(f"column {column}: {error}") from error
    places: dict[bytes, int] = {}
    inverse = [places.setdefault(text, len(places)) for text in texts]
    if table.ids == "Dynamic":  # every key is valid
        known = hashes(Cells.of([*places]), "XXH64", table.seed).view(np.int64)
        return known[np.array(inverse, np.int64)]
    if table.ids == "RowNumber":
        known = np.array([_row_number(table, text) for text in places], np.int64)
    elif table.ids == "Vocabulary":
        known = vocabularies[table.name].rows(Cells.of([*places]))
        if table.outOfRange == "DefaultRow":
            known[known < 0] = _DEFAULT_ROW
    else:
        known = (hashes(Cells.of([*places]), table.ids, table.seed) % np.uint64(table.rows)).view(np.int64)
    if len(wrong := np.flatnonzero(known < 0)):
        at = inverse.index(int(wrong[0]))
        expected = "an integer" + (f" from 0 to {table.rows - 1}" if table.outOfRange == "Fail" else "")
        if table.ids == "Vocabulary":
            expected = f"a value of {table.vocabulary}"
        raise EncodeError(f"column {column}, sample {sample(at)}: {ids[at]!r} has no row; give {expected}")
    return known[np.array(inverse, np.int64)] if inverse else np.empty(0, np.int64)


def _text(value: Any) -> bytes:
    """Return the bytes of an id."""
    match value:
        case None:
            return b""
        case bool() | np.bool_():
            return b"true" if value else b"false"
        case int() | np.integer():
            return str(int(value)).encode()
        case str():
            return value.encode()
        case bytes():
            return value
        case _:
            raise EncodeError(f"{value!r} is not an id; give an integer, a text or None")


def _whole(value: Any) -> bytes:
    """Return the digits of an id that is a whole number. None, NaN and a text of spaces are absent."""
    wrong = EncodeError(f"{value!r} is not an id; give a whole number or None")
    if isinstance(value, (float, np.floating)):
        number = float(value)
        if math.isnan(number):
            return b""
        if not number.is_integer() or abs(number) > LARGEST_WHOLE:
            raise wrong
        value = int(number)
    text = _text(value).strip(b" \t")
    if not text:
        return b""
    if not (found := _WHOLE.fullmatch(text)):
        raise wrong
    digits = found[1] + found[2]
    return b"0" if digits == b"-0" else digits


def _row_number(table: Table, text: bytes) -> int:
    """Return the row with an id as its number; -1 if there is none."""
    number = int(text) if _DIGITS.fullmatch(text) else -1
    if 0 <= number < table.rows:
        return number
    return _DEFAULT_ROW if table.outOfRange == "DefaultRow" and _INTEGER_OR_ABSENT.fullmatch(text) else -1


def _number(value: Any, column: str, sample: int) -> float:
    """Return a cell as a number; an absent one is 0."""
    if value is None or value in {"", b""}:
        return 0.0
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    number = float("nan") if isinstance(text, str) and not _NUMBER.fullmatch(text) else float(text)
    if not abs(number) <= _LARGEST:
        raise EncodeError(f"column {column}, sample {sample}: {value!r} is not a finite number; give one, or None")
    return number


def _values(cell: Any, separator: str | None) -> list[Any]:
    """Return the values of a bag."""
    if cell is None:
        return []
    if isinstance(cell, bytes):
        cell = cell.decode()
    if isinstance(cell, str):
        if separator is None:
            raise EncodeError(f"{cell!r} is not a list; this model has no separator for texts")
        return cell.split(separator)
    return list(cell)


def _weights(
    name: str, columns: Columns, bags: list[list[Any]], present: list[list[int]], separator: str | None
) -> Floats:
    """Return the weights of the ids that are present, float32 [k]."""
    found: list[float] = []
    for at, (cell, bag, places) in enumerate(zip(columns[name], bags, present, strict=True)):
        weights = _values(cell, separator)
        if len(weights) != len(bag):
            raise EncodeError(
                f"column {name}, sample {at}: {len(weights)} weights for {len(bag)} ids; give one for each"
            )
        for place in places:
            if weights[place] is None or weights[place] in {"", b""}:
                raise EncodeError(f"column {name}, sample {at}: a weight is missing; give a number")
            found.append(_number(weights[place], name, at))
    return np.array(found, np.float32)
