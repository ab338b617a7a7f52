"""What every implementation of `Store` does alike."""

import threading
import time
from array import array
from concurrent.futures import ThreadPoolExecutor

import pytest

from cpr_trainer.store import ExistsError, MissingError, Received, Store, Throttle, checksum


def keys(store: Store, prefix: str) -> tuple[str, ...]:
    return tuple(entry.key for entry in store.list(prefix))


def test_an_object_is_read_as_it_was_written(store: Store) -> None:
    store.put("job/a", b"\x00\xffdata")
    assert store.get("job/a") == b"\x00\xffdata"


def test_an_object_may_be_empty(store: Store) -> None:
    store.put("job/empty", b"")
    assert store.get("job/empty") == b""
    assert keys(store, "job/") == ("job/empty",)


def test_a_view_of_memory_is_written_without_its_owner(store: Store) -> None:
    whole = bytearray(range(100))
    store.put("job/view", memoryview(whole)[10:20])
    assert store.get("job/view") == bytes(range(10, 20))


def test_several_buffers_become_one_object(store: Store) -> None:
    rows = array("f", [1.0, 2.0])
    store.put("job/part", (b"head", memoryview(rows), b"", bytearray(b"tail")))
    assert store.get("job/part") == b"head" + rows.tobytes() + b"tail"


def test_an_object_is_read_into_several_buffers(store: Store) -> None:
    rows = array("f", [1.0, 2.0])
    store.put("job/part", (b"head", memoryview(rows), b"tail"))
    head, found, tail = bytearray(4), array("f", [0.0, 0.0]), bytearray(4)
    received = store.get_into("job/part", [memoryview(head), memoryview(found), memoryview(tail)])
    assert received == Received(16, checksum(b"head" + rows.tobytes() + b"tail"))
    assert (head, found, tail) == (b"head", rows, b"tail")


@pytest.mark.parametrize("room", [0, 4, 10, 12])
def test_an_objects_size_tells_whether_it_fitted(store: Store, room: int) -> None:
    store.put("job/a", b"0123456789")
    found = bytearray(b"." * room)
    received = store.get_into("job/a", [memoryview(found)])
    assert received == Received(10, checksum(b"0123456789"[:room]))
    assert found == b"0123456789.."[:room]
    assert store.get("job/a") == b"0123456789"  # what was not read of it does not spoil the next answer


def test_more_than_a_slice_is_read(store: Store) -> None:
    data = bytes(range(256)) * (10 << 10)
    store.put("job/a", data)
    found = bytearray(len(data) + 1)
    received = store.get_into("job/a", [memoryview(found)[:777], memoryview(found)[777:]])
    assert received == Received(len(data), checksum(data))
    assert found == data + b"\x00"


def test_an_empty_object_is_read_into_memory(store: Store) -> None:
    store.put("job/empty", b"")
    found = bytearray(b"..")
    assert store.get_into("job/empty", [memoryview(found)]) == Received(0, 0)
    assert found == b".."


def test_a_write_tells_the_checksum_of_its_bytes(store: Store) -> None:
    data = bytes(range(256)) * (8 << 10)
    assert store.put("job/part", (data[:1000], data[1000:])) == checksum(data)
    assert store.put("job/empty", b"") == 0


class Metered(Throttle):
    """Counts what asks to be sent."""

    def __init__(self) -> None:
        super().__init__(1.0, lambda: False)
        self.sizes: list[int] = []

    def wait(self, size_bytes: int) -> None:
        self.sizes.append(size_bytes)


def test_a_throttle_is_asked_for_every_byte(store: Store) -> None:
    throttle = Metered()
    store.put("job/part", (bytes(1000), bytes(3 << 20)), throttle=throttle)
    assert sum(throttle.sizes) == 1000 + (3 << 20)


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
    assert keys(store, "") == ("job/manifest.json",)


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
    for read in (store.get, lambda key: store.get_into(key, [memoryview(bytearray(1))])):
        with pytest.raises(MissingError, match="job/nothing") as raised:
            read("job/nothing")
        assert raised.value.key == "job/nothing"
        assert raised.value.remedy


def test_a_key_below_another_key_is_not_that_key(store: Store) -> None:
    store.put("job/a/b", b"")
    with pytest.raises(MissingError):
        store.get("job/a/c")


def test_a_listing_is_sorted_and_takes_any_prefix(store: Store) -> None:
    for key in ("job/shard-0002/b", "job/shard-0010/a", "job/shard-0002/a", "jobber/x"):
        store.put(key, b"")
    assert keys(store, "job/") == ("job/shard-0002/a", "job/shard-0002/b", "job/shard-0010/a")
    assert keys(store, "job/shard-0002") == ("job/shard-0002/a", "job/shard-0002/b")
    assert keys(store, "job/shard-00") == ("job/shard-0002/a", "job/shard-0002/b", "job/shard-0010/a")
    assert keys(store, "other/") == ()


def test_a_listing_tells_sizes_and_times(store: Store) -> None:
    before_s = time.time()
    store.put("job/a", b"12345")
    store.put("job/b", b"")
    assert [entry.size_bytes for entry in store.list("job/")] == [5, 0]
    for entry in store.list("job/"):
        assert abs(entry.modified_s - before_s) < 3600  # a clock of its own, to the second


def test_delete_takes_what_is_there(store: Store) -> None:
    for key in ("job/s/a", "job/s/b", "job/t/c"):
        store.put(key, b"")
    store.delete(key for key in ("job/s/a", "job/s/b", "job/s/nothing"))
    assert keys(store, "job/") == ("job/t/c",)
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
