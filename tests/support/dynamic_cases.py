"""Rules of tables with the ids Dynamic: for each a document that keeps it and one that breaks it."""

from __future__ import annotations

from support.documents import BUILT, CRITEO, DYNAMIC, NUMBERED, Case, Edits, bound

SECOND: Edits = {"spec.model.tables.1.ids": "Dynamic"}
PUSHES: Edits = {"spec.model.tables.0.eviction": {"score": "Pushes", "halvingSteps": 100}}
SHADOW: Edits = {"spec.trainers": {"replicas": 2, "denseSync": "ShadowMA"}}


def _refused(field: str, edits: Edits, message: str) -> Case:
    """A setting of the job that a dynamic table refuses, even a single one next to other tables."""
    return Case(field, edits, edits | SECOND, message)


DYNAMIC_RULES = (
    *(
        Case(
            f"spec.model.tables[0].{field}",
            DYNAMIC | {f"spec.model.tables.0.{field}": value},
            CRITEO | others | {f"spec.model.tables.0.{field}": value},
            f"only the ids Dynamic have {field}",
        )
        for field, value, others in (
            ("admission", {"minSteps": 2}, {}),
            ("eviction", {"score": "Pushes"}, NUMBERED),
            ("ttlSteps", 0, BUILT),
            ("default", "Zero", {"spec.model.tables.0.ids": "XXH64"}),
        )
    ),
    Case(
        "spec.model.tables[0].eviction.halvingSteps",
        DYNAMIC | PUSHES,
        DYNAMIC | PUSHES | {"spec.model.tables.0.eviction": {"halvingSteps": 100}},
        "only the score Pushes is halved",
    ),
    Case(
        "spec.model.tables[0].outOfRange",
        DYNAMIC,
        DYNAMIC | {"spec.model.tables.0.outOfRange": "DefaultRow"},
        "only the ids RowNumber and Vocabulary have a range",
    ),
    Case(
        "spec.model.tables[0].vocabulary",
        DYNAMIC,
        DYNAMIC | {"spec.model.tables.0.vocabulary": {"build": {}}},
        "the ids Vocabulary need a vocabulary",
    ),
    Case(
        "spec.model.tables[0].hashSeed",
        DYNAMIC | {"spec.model.tables.0.hashSeed": 7},
        CRITEO | NUMBERED | {"spec.model.tables.0.hashSeed": 7},
        "only the ids XXH64, Murmur3 and Dynamic are hashed with a seed",
    ),
    Case(
        "spec.shards.replicas",
        DYNAMIC | SECOND | {"spec.model.tables.1.rows": 2 * 4096 + 1, "spec.shards.replicas": 3},
        DYNAMIC | SECOND | {"spec.model.tables.1.rows": 2 * 4096, "spec.shards.replicas": 3},
        "shards hold whole pages of 4096 rows of a dynamic table",
    ),
    Case(
        "spec.shards.replicas",
        DYNAMIC | {"spec.shards.replicas": 5},
        DYNAMIC | {"spec.shards.replicas": 6},
        "shards hold whole pages of 4096 rows of a dynamic table",
    ),
    _refused("spec.trainers.denseSync", SHADOW, "in a shadow mode trainers take none"),
    _refused("spec.trainers.sparseUpdates", {"spec.trainers.sparseUpdates": "PerPush"}, "updates cannot be PerPush"),
    _refused("spec.recovery.onShardLoss", {"spec.recovery.onShardLoss": "Degrade"}, "needs the steps of all"),
    _refused("spec.snapshots.strategy", {"spec.snapshots.strategy": "SCAR"}, "in the place of another id"),
)
DYNAMIC_BOUNDS = (
    bound("spec.model.tables.0.admission.minSteps", 255, 256, under=DYNAMIC),
    bound("spec.model.tables.0.admission.minSteps", 1, 0, under=DYNAMIC),
    bound("spec.model.tables.0.eviction.score", "LastStep", "LFU", under=DYNAMIC),
    bound("spec.model.tables.0.eviction.halvingSteps", 0, -1, under=DYNAMIC | PUSHES),
    bound("spec.model.tables.0.ttlSteps", 2**32 - 1, 2**32, under=DYNAMIC),
    bound("spec.model.tables.0.default", "Random", "Ones", under=DYNAMIC),
)
