"""The syntax of CSV and TSV: how cells are separated and quoted, which cells are absent, and which are booleans.

pyarrow reads cells with doubled quotes, and without quotes an escape before a delimiter. Lines that are written in
another way are rewritten for it. Lines without an escape, and without blanks around quotes, are never touched.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Container
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from cpr_contract.spec import CsvSpec, DataSpec

#: Characters that MySQL, PostgreSQL and Hive write as a backslash and a letter.
_LETTERS = {b"b": b"\b", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0"}
_OUTER_BLANKS = r"^[ \t]+|[ \t]+$"


@dataclass(frozen=True)
class Dialect:
    """The syntax of lines. `header`: files begin with a line of names. `columns`: their number, if it is known.

    quote: None if quotes are characters like others. escape: the character before one that stands for itself, within
    quoted cells if there is a quote, otherwise in all. trim: blanks at both ends of cells are left out. absent: texts
    of absent cells. boolean: the texts of true and of false, or none.
    """

    delimiter: str
    quote: str | None
    header: bool
    columns: int | None = None
    escape: str | None = None
    trim: bool = False
    absent: tuple[str, ...] = ()
    boolean: tuple[str, ...] = ()

    @property
    def parsing(self) -> dict[str, Any]:
        """The options of pyarrow's parser for lines that `rewritten` returned."""
        escape = None if self.quote is not None else self.escape
        return {"delimiter": self.delimiter, "quote_char": self.quote or False, "escape_char": escape or False}

    def names(self, line: str) -> list[str]:
        """Return the cells of the first line, without its end."""
        text = self.rewritten(line.encode()).decode()
        if self.quote is None and self.escape is None:
            cells = text.split(self.delimiter)
        elif self.quote is None:
            plain = csv.reader([text], delimiter=self.delimiter, quoting=csv.QUOTE_NONE, escapechar=self.escape)
            cells = next(plain, [""])
        else:
            cells = next(csv.reader([text], delimiter=self.delimiter, quotechar=self.quote), [""])
        return [cell.strip(" \t") for cell in cells] if self.trim else cells

    def rewritten(self, data: bytes) -> bytes:
        """Return whole lines with escapes and quotes as pyarrow reads them. Other bytes are unchanged."""
        escape = self.escape is not None and self.escape.encode()
        if self.quote is None:
            if not escape or escape not in data:
                return data
            data = self._raw_absent.sub(b"", data) if self._raw_absents else data
            return self._escaped.sub(lambda found: escape + self._character(found[1]), data) if escape in data else data
        if not (escape and escape in data) and not (self.trim and self._padded.search(data)):
            return data
        lines = data.split(b"\n")
        for place, line in enumerate(lines):
            if (escape and escape in line) or (self.trim and self._padded.search(line)):
                end = b"\r" if line.endswith(b"\r") else b""
                lines[place] = self._quoted.sub(self._doubled, line.removesuffix(b"\r")) + end
        return b"\n".join(lines)

    def cells(self, table: Any, numeric: Container[str]) -> Any:
        """Return a pyarrow table with trimmed, absent and boolean cells as those of Parquet are read.

        A boolean is 1 or 0 in the columns `numeric`, and elsewhere the text true or false.
        """
        if not (self.trim or self.absent or self.boolean):
            return table
        columns = []
        for field, column in zip(table.schema, table.columns, strict=True):
            meanings = self._meanings(b"1", b"0") if field.name in numeric else self._meanings(b"true", b"false")
            columns.append(pa.chunked_array([self._read(chunk, meanings) for chunk in column.chunks], field.type))
        return pa.table(columns, schema=table.schema)

    def _read(self, cells: Any, meanings: dict[bytes, bytes]) -> Any:
        """Return an array of texts, or a dictionary array of them, with other texts for some cells."""
        if pa.types.is_dictionary(cells.type):
            return pa.DictionaryArray.from_arrays(cells.indices, self._read(cells.dictionary, meanings))
        texts = pc.replace_substring_regex(cells, _OUTER_BLANKS, "") if self.trim else cells
        if not meanings:
            return texts
        keys, values = (pa.array(each, pa.binary()) for each in (meanings.keys(), meanings.values()))
        places = pc.index_in(texts, value_set=keys)
        return pc.coalesce(values.take(places), texts)

    def _meanings(self, true: bytes, false: bytes) -> dict[bytes, bytes]:
        meanings = {each.encode(): b"" for each in self.absent if each not in self._raw_absents}
        if self.boolean:
            first, second = (each.encode() for each in self.boolean)
            meanings |= {b"true": true, b"false": false, first: true, second: false}
        return meanings

    @cached_property
    def _raw_absents(self) -> tuple[str, ...]:
        """Texts of absent cells that other cells have, too, once their escapes are read."""
        return (
            () if self.quote is not None else tuple(each for each in self.absent if self.escape and self.escape in each)
        )

    @cached_property
    def _raw_absent(self) -> re.Pattern[bytes]:
        """A whole cell that is absent. Each alternative begins with its text, which `re` finds fast."""
        delimiter = re.escape(self.delimiter.encode())
        texts = (re.escape(each.encode()) for each in self._raw_absents)
        cell = rb"|".join(rb"%s(?:(?<=[\n%s]%s)|(?<=\A%s))" % (each, delimiter, each, each) for each in texts)
        return re.compile(rb"(?:%s)(?=%s|\r?\n|\r?\Z)" % (cell, delimiter))

    @cached_property
    def _escaped(self) -> re.Pattern[bytes]:
        return re.compile(re.escape((self.escape or "").encode()) + b"(.)", re.DOTALL)

    def _character(self, escaped: bytes) -> bytes:
        return _LETTERS.get(escaped, escaped) if self.escape == "\\" else escaped

    @cached_property
    def _padded(self) -> re.Pattern[bytes]:
        return re.compile(rb"[ \t]%s|%s[ \t]" % ((re.escape((self.quote or "").encode()),) * 2))

    @cached_property
    def _quoted(self) -> re.Pattern[bytes]:
        """A quoted cell of a line: the delimiter before it, and its content."""
        delimiter, quote, escape = (
            re.escape((each or "").encode()) for each in (self.delimiter, self.quote, self.escape)
        )
        blanks = rb"[ \t]*" if self.trim and self.delimiter != "\t" else rb" *" if self.trim else b""
        content = rb"(?:[^%s%s]|%s%s%s)*" % (quote, escape, quote, quote, rb"|%s." % escape if escape else b"")
        cell = rb"(\A|%s)%s%s(%s)%s%s(?=%s|\Z)"
        return re.compile(cell % (delimiter, blanks, quote, content, quote, blanks, delimiter))

    def _doubled(self, cell: re.Match[bytes]) -> bytes:
        """Return a quoted cell without escapes: a quote in it is doubled."""
        quote, content = (self.quote or "").encode(), cell[2]
        if self.escape is not None:
            content = self._escaped.sub(
                lambda found: quote * 2 if found[1] == quote else self._character(found[1]), content
            )
        return cell[1] + quote + content + quote


CRITEO = Dialect("\t", quote=None, header=False, columns=40)


def dialect_of(data: DataSpec) -> Dialect:
    """Return the syntax of the text that `data` names: that of its format, where `data.csv` states nothing else."""
    if data.format == "Criteo":
        return CRITEO
    comma, csv_ = data.format == "CSV", data.csv or CsvSpec()
    quote = ('"' if comma else "") if csv_.quote is None else csv_.quote
    escape = None if csv_.escape == quote else csv_.escape
    return Dialect(
        csv_.delimiter or ("," if comma else "\t"),
        quote or None,
        data.header,
        escape=escape,
        trim=csv_.trim,
        # MySQL, PostgreSQL and Hive write it for a null.
        absent=(*filter(None, csv_.null_values), *(("\\N",) if escape == "\\" and not quote else ())),
        boolean=csv_.boolean,
    )
