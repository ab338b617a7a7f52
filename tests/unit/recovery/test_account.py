import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_operator.api.status import Dense, Shard, Status
from cpr_operator.ledger import Ledger
from cpr_operator.recovery.account import Account, account_of, with_account


def account(*lost: tuple[tuple[int, int], ...], limit: int = 1000) -> Account:
    return Account(Ledger(total=1000, limit=limit, lost=lost), ((),) * len(lost))


def test_reserve_excludes_known_losses() -> None:
    book = account(((900, 950),), ()).reserve({0: ((900, 1000),)})
    assert (book.ledger.spent, book.set_aside, book.charged) == (50, 50, 100)


def test_dense_reservation_counts_on_every_shard() -> None:
    assert account((), (), ()).reserve({}, ((100, 150),)).charged == 150


def test_settle_charges_reported_losses_and_releases_that_reservation() -> None:
    book = account((), ()).reserve({1: ((900, 1000),)}).settle({1: ((900, 930),)})
    assert (book.ledger.lost, book.reserved, book.charged) == (((), ((900, 930),)), ((), ()), 30)
    book = account((), ()).reserve({0: ((0, 10),), 1: ((0, 10),)}).settle({1: ()})
    assert book.reserved == (((0, 10),), ())


def test_rollback_keeps_losses_before_the_anchor() -> None:
    book = account(((100, 200), (600, 700)), ()).reserve({1: ((150, 900),)}, ((880, 890),)).roll_back(650)
    assert book.ledger.lost == (((100, 200), (600, 650)), ((150, 650),))
    assert book.set_aside == 0


def test_rollback_charges_a_pending_dense_loss_without_a_reservation() -> None:
    book = account((), ()).note_pending_dense(600).note_pending_dense(700).note_pending_dense(None)
    assert (book.dense_pending_from, book.charged) == (600, 0)
    assert book.roll_back(650).ledger.lost == (((600, 650),),) * 2
    assert book.settle_dense(()).roll_back(650).ledger.spent == 0


RANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=4).map(tuple)


@given(lost=RANGES, first=RANGES, second=RANGES)
def test_reservations_count_a_sample_once_per_shard(
    lost: tuple[tuple[int, int], ...], first: tuple[tuple[int, int], ...], second: tuple[tuple[int, int], ...]
) -> None:
    book = account((), ()).settle({0: lost}).reserve({0: first}).reserve({0: second})
    samples = {x for a, b in (*lost, *first, *second) for x in range(a, b)}
    assert book.charged == len(samples)


def test_reshard_charges_reservations() -> None:
    book = account(((100, 200),), (), limit=1000).reserve({1: ((300, 350),)}, ((400, 410),)).reshard(4, 2000)
    assert (book.ledger.spent, book.ledger.limit, book.reserved, book.dense) == (2 * 170, 2000, ((),) * 4, ())
    assert (book.charged, book.set_aside) == (340, 0)


@pytest.mark.parametrize(
    ("dense", "pending"),
    [
        (Dense(floor_samples=300), ()),
        (Dense(floor_samples=300, pending_from=300), ((300, 500),)),
        (Dense(floor_samples=300, pending_from=200, reserved=((300, 400),)), ((200, 500),)),
        # As releases before owesFrom left it.
        (Dense(floor_samples=300, reserved=((300, 400),)), ((300, 500),)),
    ],
)
def test_pending_dense_loss_is_charged_up_to_the_anchor(dense: Dense, pending: tuple[tuple[int, int], ...]) -> None:
    status = Status(shards=(Shard(index=0), Shard(index=1)), dense=dense)
    account = account_of(status)
    assert account.roll_back(500).ledger.lost == (pending, pending)
    assert account_of(with_account(status, account)) == account
