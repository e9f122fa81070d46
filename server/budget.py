"""The server's side of ``privacy.epsilon-budget``: clients whose next round would pass it are not asked any more.

Each reply tells what epsilon one more such round would bring (``client.budget.epsilon_next``). The client refuses that
round itself, whatever a server does; here it is only not asked in vain, and a run that has too few clients left ends
there, with what it has learned.
"""

from collections.abc import Iterable, Mapping
from typing import Any


def past_budget(ledgers: Mapping[str, Mapping[str, Any]], budget: float) -> dict[int, float]:
    """The epsilon of one more round by client, where it is above ``budget``; 0: no budget.

    >>> past_budget({"0": {"epsilon_next": 2.1}, "1": {"epsilon_next": 1.9}, "2": {}}, 2.0)
    {0: 2.1}
    """
    lines = {int(client): line.get("epsilon_next") for client, line in ledgers.items()}
    return {client: float(value) for client, value in lines.items() if value is not None and 0 < budget < float(value)}


def too_few(clients: Iterable[int], over: Mapping[int, float], minimum: int, budget: float, round: int) -> str | None:
    """Why ``round`` cannot take place, or None while at least ``minimum`` of ``clients`` can afford it.

    >>> too_few([0, 1], {0: 2.1}, 1, 2.0, 5) is None, too_few([0, 1], {0: 2.1}, 2, 2.0, 5)
    (True, 'stopped before round 5: it would bring 1 of 2 clients past privacy.epsilon-budget = 2 (ε up to 2.100)')
    """
    known = set(clients) | set(over)
    if not over or len(known - set(over)) >= minimum:
        return None
    past = f"{len(over)} of {len(known)} clients past privacy.epsilon-budget = {budget:g}"
    return f"stopped before round {round}: it would bring {past} (ε up to {max(over.values()):.3f})"
