from cpr_operator.desired.names import JobId, pod_name
from cpr_operator.desired.pod import grace_s


def test_a_name_carries_role_index_and_incarnation_and_five_characters_of_the_uid() -> None:
    assert pod_name(JobId("ns", "criteo", "0a1b2c3d-4"), "shard", 3, 2) == "criteo-0a1b2-shard-3-2"


def test_two_jobs_of_one_name_never_share_a_pod_name() -> None:
    first, second = (pod_name(JobId("ns", "criteo", uid), "shard", 0, 1) for uid in ("aaaaa-1", "bbbbb-2"))
    assert first != second


def test_the_longest_name_fits_a_label() -> None:
    assert len(pod_name(JobId("ns", "x" * 40, "0a1b2c3d"), "trainer", 255, 9999)) <= 63


def test_grace_is_twice_the_expected_flush_and_never_below_30_s() -> None:
    assert [grace_s(value) for value in (None, 3.0, 40.0)] == [30, 30, 80]
