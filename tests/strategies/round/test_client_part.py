"""What the registry says of the clients' half of every scheme."""

from prunella.strategies import STRATEGIES
from prunella.strategies.round.client_part import ClientPart


def test_fedavg_asks_for_plain_training_only() -> None:
    assert STRATEGIES["fedavg"].client == ClientPart(None, None, None, False)


def test_what_tells_of_examples_beside_the_update_is_declared() -> None:
    """The conditions of a node's owner are decided on these."""
    parts = {name: scheme.client for name, scheme in STRATEGIES.items()}
    assert {name for name, part in parts.items() if part.plan} >= {"feddst", "lotteryfl"}
    assert {name for name, part in parts.items() if part.first_mask} >= {"prunefl"}
    assert {name for name, part in parts.items() if part.sends_importance} >= {"prunefl"}
    assert {name for name, part in parts.items() if part.validates} >= {"lotteryfl"}
