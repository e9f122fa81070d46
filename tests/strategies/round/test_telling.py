"""Which rounds are audited, beside those of ``audit-every``: client and server count alike."""

from typing import Any

import pytest

from prunella.core.config import Run
from prunella.strategies import find, scheme_settings
from prunella.strategies.round.telling import audited, first_telling


def told(strategy: str, defenses: str = "dgp", raw: dict[str, Any] | None = None, **more: Any) -> int:
    run = Run(**{"strategy": strategy, "defenses": defenses, "rounds": 10, **more})
    return first_telling(run, find(strategy).client, scheme_settings(strategy, raw or {}))


@pytest.mark.parametrize("defenses", ["dgp", "priprune", "soteria", "channel-natural,top-k", "mask-hiding", "my:OWN"])
def test_the_first_round_of_squares_behind_a_defense_that_they_pass_by(defenses: str) -> None:
    assert told("prunefl", defenses) == told("prunefl", defenses, audit_every=7) == 4
    assert told("prunefl", defenses, {"prunefl.adjust-interval": 3}) == 3
    assert told("fedtiny", defenses, {"fedtiny.adjust-interval": 5, "fedtiny.stop-round": 9}) == 5


@pytest.mark.parametrize("defenses", ["none", "gaussian", "gaussian,dgp", "channel-natural", "dgp,leakage-guard"])
def test_none_where_the_update_tells_as_much(defenses: str) -> None:
    assert told("prunefl", defenses) == 0


def test_none_where_no_squares_leave_or_nothing_is_audited() -> None:
    assert told("feddst") == told("prunefl", audit_every=0) == told("prunefl", rounds=3) == 0
    assert told("fedtiny", raw={"fedtiny.adjust-interval": 5, "fedtiny.stop-round": 5}) == 0


def test_it_joins_the_rounds_of_the_interval() -> None:
    run, part = Run(rounds=10, audit_every=6, defenses="dgp"), find("prunefl").client
    settings = scheme_settings("prunefl", {})
    assert [round for round in range(1, 11) if audited(run, part, settings, round)] == [1, 4, 6, 10]
