"""The budget's account, read from a status."""

import pytest

from cpr_operator.api.status import Dense, Shard, Status
from cpr_operator.reconcile.members import account_of, with_account


@pytest.mark.parametrize(
    ("dense", "owed"),
    [
        (Dense(floor_samples=300), ()),
        (Dense(floor_samples=300, owes_from=300), ((300, 500),)),
        (Dense(floor_samples=300, owes_from=200, reserved=((300, 400),)), ((200, 500),)),
        # As releases before owesFrom left it.
        (Dense(floor_samples=300, reserved=((300, 400),)), ((300, 500),)),
    ],
)
def test_what_the_dense_state_owes_is_charged_up_to_the_anchor(dense: Dense, owed: tuple[tuple[int, int], ...]) -> None:
    status = Status(shards=(Shard(index=0), Shard(index=1)), dense=dense)
    account = account_of(status)
    assert account.roll_back(500).ledger.lost == (owed, owed)
    assert account_of(with_account(status, account)) == account
