"""Words in names of columns that show the meaning of their cells."""

from __future__ import annotations

import re

#: Names of labels, without signs between their words.
LABELS = frozenset({"label", "labels", "target", "targets", "y", "ytrue"})
#: Names of outcomes, which are labels if they have two values.
OUTCOMES = frozenset(
    {
        *("click", "clicked", "clk", "isclick", "isclicked", "clicklabel", "ctr"),
        *("conversion", "converted", "isconversion", "isconverted", "cvr"),
        *("buy", "bought", "isbuy", "purchase", "purchased", "ispurchase", "ispurchased", "ordered", "isorder"),
        *("like", "liked", "islike", "isliked", "install", "installed", "isinstall", "response", "outcome"),
    }
)
RATINGS = frozenset({"rating", "ratings", "stars", "star", "score", "userrating", "reviewscore", "overall"})
WEIGHTS = frozenset({"weight", "sampleweight", "instanceweight", "exampleweight", "importanceweight"})
#: Names of points in time, whatever their cells are.
TIMES = frozenset({"timestamp", "ts", "datetime", "date", "unixtime", "eventtime", "createdat", "updatedat"})
#: Words of a point in time, or of a part of the day, the week or the year if the numbers are small.
TIME_WORDS = frozenset({"time", "hour", "day", "week", "month", "year", "minute", "weekday", "dt"})
ID_WORDS = frozenset(
    {
        *("id", "ids", "uid", "uuid", "gid", "pid", "sid", "key", "code", "hash", "cookie", "ip", "zip", "postcode"),
        *("user", "item", "movie", "product", "sku", "ad", "advertiser", "campaign", "creative", "site", "app"),
        *("device", "category", "cat", "cate", "brand", "shop", "seller", "publisher", "genre", "genres", "type"),
        *("city", "country", "region", "query", "page", "song", "track", "artist", "video", "author", "channel"),
    }
)
QUANTITY_WORDS = frozenset(
    {
        *("count", "counts", "cnt", "num", "number", "n", "total", "sum", "visits", "views", "impressions", "clicks"),
        *("price", "cost", "amount", "revenue", "bid", "income", "age", "quantity", "qty", "duration", "seconds"),
        *("length", "size", "width", "height", "ratio", "rate", "avg", "mean", "min", "max", "pct", "percent"),
        *("percentage", "score", "distance", "temperature", "lat", "lon", "latitude", "longitude", "minutes", "hours"),
    }
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def words(name: str) -> tuple[str, ...]:
    """Return the words of a name in lower case: `userId` and `user_id` have the same."""
    return tuple(word.lower() for word in _WORD.findall(name))


def joined(name: str) -> str:
    """Return the words of a name without signs between them."""
    return "".join(words(name))
