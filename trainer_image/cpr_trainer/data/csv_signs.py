"""Detection of columns of text that look as if their file had another syntax than the job states."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cpr_trainer.data.dialect import Dialect

_MISSING = ("\\N", "NULL", "null", "None", "NaN", "nan", "NA", "N/A", "n/a", "<NA>", "(null)")
_TRUTHS = frozenset({"True", "False", "TRUE", "FALSE", "true", "false"})
_WHOLE = r"^-?[0-9]+\.0+$"
_MAX_SHOWN = 40


class CsvSigns:
    """Finds cells of one column that another syntax would read in another way, and has an example of each kind."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._patterns = {"trim": r"^[ \t]|[ \t]$"}
        if dialect.quote is None:
            self._patterns["quote"] = '^".*"$'
        if dialect.escape is None:
            # pyarrow takes an escaped quote for the end of a quoted cell.
            self._patterns["escape"] = r'\\.*"|\\\\'
        self._missing = [each for each in _MISSING if each not in dialect.absent]
        self._examples: dict[str, str] = {}
        self._found_missing: dict[str, None] = {}
        self._truths: set[str] | None = set()
        self._whole: bool | None = None

    def add(self, texts: Any) -> None:
        """Add different cells of a block, a pyarrow array of bytes without nulls and empty texts."""
        if not len(texts):
            return
        for field in self._patterns.keys() - self._examples.keys():
            if len(found := texts.filter(pc.match_substring_regex(texts, self._patterns[field]))):
                self._examples[field] = _shown(found[0])
        is_missing = pc.is_in(texts, value_set=pa.array([each.encode() for each in self._missing], texts.type))
        self._found_missing |= dict.fromkeys(each.as_py().decode() for each in texts.filter(is_missing))
        if not len(present := texts.filter(pc.invert(is_missing))):
            return
        if self._truths is not None:
            several = len(present) > len(_TRUTHS)
            words = set() if several else {each.as_py().decode("utf-8", "replace") for each in present}
            self._truths = None if several or not words <= _TRUTHS else self._truths | words
        whole = pc.all(pc.match_substring_regex(present, _WHOLE)).as_py()
        self._whole = whole if self._whole is None else self._whole and whole

    def warnings(self, column: str, *, ids: bool, numeric: bool) -> list[str]:
        """Return a sentence and a remedy for each kind of cells that was found.

        ids: the column may have ids. numeric: the job reads it as a label or a number.
        """
        found = []
        if "quote" in self._examples:
            found.append(f"has cells in quotes, as {self._examples['quote']}. State data.csv.quote: '\"'.")
        if "escape" in self._examples:
            found.append(
                f"has backslashes, as {self._examples['escape']}. If they are escapes, state data.csv.escape: '\\'."
            )
        if "trim" in self._examples:
            found.append(f"has cells with outer blanks, as {self._examples['trim']}. State data.csv.trim: true.")
        if self._found_missing:
            listed = ", ".join(f"'{each}'" for each in self._found_missing)
            found.append(f"has cells {listed}. If these are missing values, state data.csv.nullValues: [{listed}].")
        if (
            self._truths
            and not self._dialect.boolean
            and (numeric or self._truths & {"True", "False", "TRUE", "FALSE"})
        ):
            true, false = (min(self._truths & words, default=default) for words, default in _WORDS)
            found.append(f"has only {true} and {false}. State data.csv.boolean: ['{true}', '{false}'].")
        if ids and self._whole:
            found.append("writes each whole number with a point, as 12.0. Name it in data.columns.integers.")
        return [f"Column {column} {each}" for each in found]


_WORDS = ((frozenset({"True", "TRUE", "true"}), "True"), (frozenset({"False", "FALSE", "false"}), "False"))


def _shown(cell: Any) -> str:
    return repr(cell.as_py()[:_MAX_SHOWN].decode("utf-8", "replace"))
