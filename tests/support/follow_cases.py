"""Rules of jobs that follow their data: for each a document that keeps it and one that breaks it."""

from __future__ import annotations

from support.documents import ABSENT, BUILT, CRITEO, OWN_MODEL, PARQUET, Case, Edits, bound

FOLLOW: Edits = CRITEO | {"spec.data.epochs": ABSENT, "spec.data.follow": {}}
_ICEBERG: Edits = (
    PARQUET | OWN_MODEL | {"spec.data.format": "Iceberg", "spec.data.epochs": ABSENT, "spec.data.follow": {}}
)
_CUSTOM = {"spec.data.format": "Custom", "spec.data.entrypoint": "my.rows:dataset"}


FOLLOW_RULES = (
    Case(
        "spec.data.follow",
        FOLLOW,
        {"spec.data": {"format": "Synthetic", "follow": {}}},
        "only data that other programs write can grow",
    ),
    Case(
        "spec.data.follow",
        PARQUET | OWN_MODEL | {"spec.data.follow": {}},
        PARQUET | OWN_MODEL | _CUSTOM | {"spec.data.follow": {}},
        "only data that other programs write can grow",
    ),
    Case(
        "spec.data.uri",
        _ICEBERG | {"spec.data.uri": "/data/clicks/"},
        _ICEBERG | {"spec.data.uri": "/data/clicks/metadata/00007-a.metadata.json"},
        "a metadata file of Iceberg has one version of its table",
    ),
    Case("spec.data.samples", FOLLOW, FOLLOW | {"spec.data.samples": 1000}, "data that grows has no number of samples"),
    bound("spec.data.epochs", 1, 2, under=FOLLOW),
    bound("spec.data.holdOut", 0, 0.1, under=FOLLOW),
    Case(
        "spec.evaluation.uri",
        FOLLOW | {"spec.evaluation": {"groupBy": "user", "uri": "/data/test/"}},
        FOLLOW | {"spec.evaluation": {"groupBy": "user"}},
        "data that grows holds out no rows",
    ),
    Case(
        "spec.evaluation.earlyStop",
        FOLLOW | {"spec.evaluation": {"everySamples": 10, "uri": "/data/test/"}},
        FOLLOW
        | {
            "spec.evaluation": {
                "everySamples": 10,
                "uri": "/data/test/",
                "earlyStop": {"metric": "AUC", "patience": 3},
            }
        },
        "ends with its data",
    ),
    Case(
        "spec.model.tables",
        FOLLOW | {"spec.model.tables.0.ids": "Dynamic"},
        FOLLOW | BUILT,
        "a vocabulary is fixed before the first step",
    ),
    Case(
        "spec.trainers.denseSync",
        FOLLOW | {"spec.trainers": {"replicas": 2}},
        FOLLOW | {"spec.trainers": {"replicas": 2, "denseSync": "ShadowMA"}},
        "take each step together",
    ),
)
FOLLOW_BOUNDS = (
    bound("spec.data.follow.everySeconds", 1, 0, under=FOLLOW),
    bound("spec.data.follow.everySeconds", 86400, 1.5, under=FOLLOW),
    bound("spec.data.follow.idle", "Finish", "Stop", under=FOLLOW),
    bound("spec.data.follow.until", "2026-12-31T00:00:00Z", "2026-12-31", under=FOLLOW),
    bound("spec.data.follow.until", "2026-12-31T00:00:00.5+05:30", "2026-12-31T00:00:00", under=FOLLOW),
    bound("spec.data.follow.until", "2028-02-29T23:59:59Z", "2026-02-29T23:59:59Z", under=FOLLOW),
)
