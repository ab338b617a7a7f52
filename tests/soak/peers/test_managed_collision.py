"""A checkpoint of TorchRec's MPZCH in a dynamic table: the ids have the vectors that TorchRec's own lookups give them.

On a CPU, TorchRec looks ids up and inserts none. The ids are therefore put where its lookups search for them.
"""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cpr_contract.model import DynamicSpec, TableSpec
from cpr_contract.requests import ImportRequest
from cpr_contract.spec import StoreSpec
from cpr_trainer.importing.main import import_model
from cpr_trainer.importing.row_keys import keys_of
from cpr_trainer.importing.sources import opened
from cpr_trainer.store import Uris
from support.memory_store import MemoryStore
from support.restored_entries import restored
from support.shard_job import small_job

PEERS_PYTHON = Path(__file__).parents[3] / "benchmarks" / "baselines" / ".venv" / "bin" / "python"
pytestmark = [
    pytest.mark.skipif(not PEERS_PYTHON.exists(), reason="TorchRec is not installed: run `make peers`"),
    pytest.mark.dist,
    pytest.mark.timeout(600),
]

SLOTS, SEED = 512, 7
#: Writes a checkpoint, and the vector of each id.
TRAINED = """
import sys
import numpy as np, torch
from torch.distributed.checkpoint.state_dict_saver import save
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, JaggedTensor, KeyedJaggedTensor
from torchrec.modules.hash_mc_evictions import HashZchEvictionConfig, HashZchEvictionPolicyName
from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import ManagedCollisionCollection

folder, slots = sys.argv[1], int(sys.argv[2])
torch.manual_seed(5)
tables = [EmbeddingBagConfig(name="t_user", embedding_dim=4, num_embeddings=slots, feature_names=["user"])]
managed = HashZchManagedCollisionModule(
    slots, torch.device("cpu"), total_num_buckets=4, max_probe=64, track_id_freq=True,
    eviction_policy_name=HashZchEvictionPolicyName.SINGLE_TTL_EVICTION,
    eviction_config=HashZchEvictionConfig(["user"], single_ttl=10),
)
model = ManagedCollisionEmbeddingBagCollection(
    EmbeddingBagCollection(tables=tables), ManagedCollisionCollection({"t_user": managed}, tables)
).eval()
managed.reset_intrainer_bulk_eval_mode()

def lengths(ids):
    return torch.ones(len(ids), dtype=torch.int64)

def slot_of(ids):
    found = managed({"user": JaggedTensor(ids, lengths=lengths(ids))})["user"]
    return found.values()

identities, counts = managed._hash_zch_identities.data, managed._hash_zch_runtime_meta.data
placed = []
for number in torch.randint(0, 2**62, (300,)):
    for slot in (identities[:, 0] == -1).nonzero()[:, 0].tolist():
        identities[slot] = number
        if slot_of(number.view(1)).item() == slot:
            placed.append(number)
            counts[slot] = len(placed)
            break
        identities[slot] = -1
ids = torch.stack(placed)
assert (identities[slot_of(ids), 0] == ids).all()
vectors, _ = model(KeyedJaggedTensor(["user"], values=ids, lengths=lengths(ids)))
np.savez(f"{folder}/vectors.npz", ids=ids, vectors=vectors["user"].detach(), counts=counts[slot_of(ids), 0])
save({"model": model.state_dict()}, checkpoint_id=f"{folder}/checkpoint", no_dist=True)
"""


def test_ids_of_mpzch_have_the_vectors_of_its_own_lookups(tmp_path: Path) -> None:
    subprocess.run([PEERS_PYTHON, "-c", TRAINED, tmp_path, str(SLOTS)], check=True)
    expected = np.load(tmp_path / "vectors.npz")
    spec = small_job(Path("unused"), shards=2, dim=4)
    rules = DynamicSpec(min_steps=2, score="Pushes")
    user = TableSpec("user", 8192, ids="Dynamic", hash_seed=SEED, dynamic=rules)
    spec = replace(spec, model=replace(spec.model, tables=(user,)))
    mapped = (("t_user.weight", "user"), ("t_user._hash_zch_runtime_meta", "user:count"))
    request = ImportRequest((), "ranker", mapped, dense="Initialise")
    store = MemoryStore()
    with opened([str(tmp_path / "checkpoint")], Uris(StoreSpec("file:///", None, "", ""))) as found:
        imported = import_model(store, spec, request, found)
    ids, vectors, counts = (expected[name] for name in ("ids", "vectors", "counts"))
    assert 250 < len(ids) == imported.tables[0].rows < SLOTS
    entries = restored(store, spec, imported.key)
    keys = keys_of(ids, SEED).tolist()
    assert {key: (row, count) for key, (row, _, count) in entries.items()} == dict(
        zip(keys, zip(vectors.tolist(), counts.tolist(), strict=True), strict=True)
    )
