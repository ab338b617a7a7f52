"""Small files in the exact shape of public logs, with values drawn from a seed.

Each writer returns the labels of its rows, in their order.
"""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Labels = list[int]
ROWS = 600
AVAZU = (
    "id click hour C1 banner_pos site_id site_domain site_category app_id app_domain app_category device_id device_ip "
    "device_model device_type device_conn_type C14 C15 C16 C17 C18 C19 C20 C21"
)


def _draws(rows: int = ROWS) -> Iterator[tuple[random.Random, int]]:
    """Yield for each row the source of its values, and its label."""
    draw = random.Random(7)
    for _ in range(rows):
        yield draw, int(draw.random() < 0.3)


def _csv(rows: list[list[object]]) -> bytes:
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _criteo(rows: int = ROWS) -> tuple[bytes, Labels]:
    """Label, 13 integers, 26 words of eight hexadecimal digits; tabs, no header, many empty cells."""
    lines, labels = list[str](), Labels()
    for draw, label in _draws(rows):
        counts = ["" if draw.random() < 0.2 else str(draw.randrange(-3, 2000)) for _ in range(13)]
        words = ["" if draw.random() < 0.1 else f"{draw.randrange(50) * 0x2545F49:08x}" for _ in range(26)]
        lines.append("\t".join([str(label), *counts, *words]))
        labels.append(label)
    return ("\n".join(lines) + "\n").encode(), labels


def criteo_kaggle(folder: Path) -> Labels:
    text, labels = _criteo()
    (folder / "train.txt").write_bytes(text)
    return labels


def criteo_1tb(folder: Path) -> Labels:
    """Write two days of training, and the last day."""
    (folder / "train").mkdir()
    text, labels = _criteo(ROWS // 2)
    for day in (0, 1):
        (folder / "train" / f"day_{day}.gz").write_bytes(gzip.compress(text))
    (folder / "day_23.gz").write_bytes(gzip.compress(text))
    return labels * 2


def criteo_x1(folder: Path) -> Labels:
    """Numbers from 0 to 1, and categories that are numbered over all columns; pandas wrote some as 12.0."""
    header = ["label", *(f"I{number}" for number in range(1, 14)), *(f"C{number}" for number in range(1, 27))]
    rows, labels = list[list[object]]([[*header]]), Labels()
    for draw, label in _draws():
        categories = [1000 * place + draw.randrange(50) for place in range(26)]
        rows.append([label, *(round(draw.random(), 6) for _ in range(13)), *categories[:25], f"{categories[25]}.0"])
        labels.append(label)
    for name in ("train.csv", "test.csv"):
        (folder / name).write_bytes(_csv(rows))
    return labels


def avazu(folder: Path) -> Labels:
    """Twenty-four columns: hashed texts, small integers, and the hour as YYMMDDHH."""
    rows, labels = list[list[object]]([[*AVAZU.split()]]), Labels()
    for place, (draw, label) in enumerate(_draws()):
        hour = f"1410{21 + place * 10 // ROWS}{draw.randrange(24):02}"
        texts = [f"{draw.randrange(40) * 0x2545F49:08x}" for _ in range(9)]
        numbers = [draw.choice((-1, 100084, 320)) for _ in range(10)]
        rows.append([10**18 + place, label, hour, 1005, draw.randrange(3), *texts, *numbers])
        labels.append(label)
    (folder / "train.gz").write_bytes(gzip.compress(_csv(rows)))
    return labels


def movielens_25m(folder: Path) -> Labels:
    """Stars in halves, and rows that are sorted by user."""
    rows, labels = list[list[object]]([["userId", "movieId", "rating", "timestamp"]]), Labels()
    for place, (draw, label) in enumerate(_draws()):
        stars = draw.choice((4.0, 4.5, 5.0) if label else (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5))
        rows.append([1 + place // 20, draw.choice((1, 296, 209171)), stars, 1147880044 - 7919 * place % 100003])
        labels.append(label)
    (folder / "ratings.csv").write_bytes(_csv(rows))
    return labels


def movielens_1m(folder: Path) -> Labels:
    lines, labels = list[str](), Labels()
    for place, (draw, label) in enumerate(_draws()):
        stars = draw.choice((4, 5) if label else (1, 2, 3))
        lines.append(f"{1 + place // 20}::{draw.choice((1, 1193, 3952))}::{stars}::{978300760 + place}\n")
        labels.append(label)
    (folder / "ratings.dat").write_text("".join(lines), "ascii")
    return labels


def taobao(folder: Path) -> Labels:
    rows, labels = list[list[object]](), Labels()
    for place, (draw, label) in enumerate(_draws()):
        action = "buy" if label else draw.choice(("pv", "cart", "fav"))
        rows.append([1 + place // 20, draw.randrange(5163070), draw.randrange(5162429), action, 1511544070 + place])
        labels.append(label)
    (folder / "UserBehavior.csv").write_bytes(_csv(rows))
    return labels


def yambda_flat(folder: Path) -> Labels:
    """Write a row for each listen, with the types of the data set."""
    columns = dict[str, list[int]]()
    labels = Labels()
    for place, (draw, label) in enumerate(_draws()):
        values = {
            "uid": 10 * (1 + place // 20),
            "timestamp": 5 * place,
            "item_id": draw.randrange(9390623),
            "is_organic": draw.randrange(2),
            "played_ratio_pct": draw.randrange(50, 101) if label else draw.randrange(50),
            "track_length_seconds": 5 * draw.randrange(20, 80),
        }
        for name, value in values.items():
            columns.setdefault(name, []).append(value)
        labels.append(label)
    pq.write_table(pa.table({name: pa.array(values, _TYPES[name]) for name, values in columns.items()}),
                   folder / "listens.parquet")  # fmt: skip
    return labels


def yambda_sequential(folder: Path) -> Labels:
    """Write a row for each user, with a list of listens in each column; a user of one listen is no sample."""
    columns: dict[str, list[object]] = {name: [] for name in _TYPES}
    labels = Labels()
    for place, (draw, label) in enumerate(_draws()):
        count = 1 if place % 10 == 0 else draw.randrange(2, 80)
        columns["uid"].append(10 * place)
        columns["timestamp"].append([5 * listen for listen in range(count)])
        columns["item_id"].append([draw.randrange(9390623) for _ in range(count)])
        columns["is_organic"].append([draw.randrange(2) for _ in range(count)])
        ratios = [draw.randrange(101) for _ in range(count - 1)]
        columns["played_ratio_pct"].append([*ratios, draw.randrange(50, 101) if label else draw.randrange(50)])
        columns["track_length_seconds"].append([180] * count)
        labels += [label] if count > 1 else []
    lists = {name: kind if name == "uid" else pa.list_(kind) for name, kind in _TYPES.items()}
    pq.write_table(pa.table({name: pa.array(values, lists[name]) for name, values in columns.items()}),
                   folder / "listens.parquet")  # fmt: skip
    return labels


_TYPES = {
    "uid": pa.uint32(),
    "timestamp": pa.uint32(),
    "item_id": pa.uint32(),
    "is_organic": pa.uint8(),
    "played_ratio_pct": pa.uint16(),
    "track_length_seconds": pa.uint32(),
}

WRITERS: dict[str, Callable[[Path], Labels]] = {
    "criteo-kaggle": criteo_kaggle,
    "criteo-1tb": criteo_1tb,
    "criteo-x1": criteo_x1,
    "avazu": avazu,
    "movielens-25m": movielens_25m,
    "movielens-1m": movielens_1m,
    "taobao": taobao,
    "yambda-flat": yambda_flat,
    "yambda-sequential": yambda_sequential,
}
