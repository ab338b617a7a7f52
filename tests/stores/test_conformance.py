"""What every implementation of `Store` does alike."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cpr_trainer.store import ExistsError, MissingError, Store


def test_an_object_is_read_as_it_was_written(store: Store) -> None:
    store.put("job/a", b"\x00\xffdata")
    assert store.get("job/a") == b"\x00\xffdata"


def test_an_object_may_be_empty(store: Store) -> None:
    store.put("job/empty", b"")
    assert store.get("job/empty") == b""
    assert store.list("job/") == ("job/empty",)


def test_a_view_of_memory_is_written_without_its_owner(store: Store) -> None:
    whole = bytearray(range(100))
    store.put("job/view", memoryview(whole)[10:20])
    assert store.get("job/view") == bytes(range(10, 20))


def test_a_large_object_survives(store: Store) -> None:
    data = bytes(range(256)) * (9 << 12)  # 9 MiB: more than any client's own part
    store.put("job/large", data)
    assert store.get("job/large") == data


def test_a_second_put_replaces(store: Store) -> None:
    store.put("job/a", b"one")
    store.put("job/a", b"two")
    assert store.get("job/a") == b"two"


def test_if_absent_writes_once(store: Store) -> None:
    store.put("job/manifest.json", b"one", if_absent=True)
    with pytest.raises(ExistsError, match=r"job/manifest\.json") as raised:
        store.put("job/manifest.json", b"two", if_absent=True)
    assert raised.value.key == "job/manifest.json"
    assert store.get("job/manifest.json") == b"one"


def test_of_many_that_write_if_absent_one_wins(store: Store) -> None:
    together = threading.Barrier(6)

    def attempt(number: int) -> int | None:
        together.wait()
        try:
            store.put("job/manifest.json", str(number).encode() * 1000, if_absent=True)
        except ExistsError:
            return None
        return number

    with ThreadPoolExecutor(6) as threads:
        winners = [number for number in threads.map(attempt, range(6)) if number is not None]
    assert len(winners) == 1
    assert store.get("job/manifest.json") == str(winners[0]).encode() * 1000


def test_a_missing_object_is_named(store: Store) -> None:
    with pytest.raises(MissingError, match="job/nothing") as raised:
        store.get("job/nothing")
    assert raised.value.key == "job/nothing"
    assert raised.value.remedy


def test_a_key_below_another_key_is_not_that_key(store: Store) -> None:
    store.put("job/a/b", b"")
    with pytest.raises(MissingError):
        store.get("job/a/c")


def test_a_listing_is_sorted_and_takes_any_prefix(store: Store) -> None:
    for key in ("job/shard-0002/b", "job/shard-0010/a", "job/shard-0002/a", "jobber/x"):
        store.put(key, b"")
    assert store.list("job/") == ("job/shard-0002/a", "job/shard-0002/b", "job/shard-0010/a")
    assert store.list("job/shard-0002") == ("job/shard-0002/a", "job/shard-0002/b")
    assert store.list("job/shard-00") == ("job/shard-0002/a", "job/shard-0002/b", "job/shard-0010/a")
    assert store.list("other/") == ()


def test_delete_takes_what_is_there(store: Store) -> None:
    for key in ("job/s/a", "job/s/b", "job/t/c"):
        store.put(key, b"")
    store.delete(key for key in ("job/s/a", "job/s/b", "job/s/nothing"))
    assert store.list("job/") == ("job/t/c",)
    store.put("job/s/a", b"again")
    assert store.get("job/s/a") == b"again"


def test_threads_do_not_meet(store: Store) -> None:
    def write(number: int) -> bool:
        data = bytes([number]) * 50_000
        store.put(f"job/part-{number:03d}", data)
        return store.get(f"job/part-{number:03d}") == data

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(write, range(40)))
    assert len(store.list("job/part-")) == 40
