"""The server's side of ``privacy.epsilon-budget``: a client whose next round would exceed it is not asked any more.

Each reply says which epsilon one more such round would reach, and the client's budget, which its owner may have set
below the run's (``client.charging.epsilon_next``, ``client.policy``). The client itself refuses such a round, whatever
the server does; the server only avoids asking for nothing. A run with too few clients left ends with what it has
learned.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from prunella.server.store.schema import EARLY


class Overrun(NamedTuple):
    """The epsilon that one more round would reach, and the budget it would exceed."""

    epsilon: float
    budget: float


def past_budget(ledgers: Mapping[str, Mapping[str, Any]], budget: float) -> dict[int, Overrun]:
    """The clients that one more round would take past their budget or the run's (``budget``; 0 means none).

    >>> past_budget({"0": {"epsilon_next": 2.1}, "1": {"epsilon_next": 1.9}, "2": {}}, 2.0)
    {0: Overrun(epsilon=2.1, budget=2.0)}
    >>> past_budget({"1": {"epsilon_next": 1.9, "epsilon_budget": 1.5}}, 0.0)
    {1: Overrun(epsilon=1.9, budget=1.5)}
    """
    found = {}
    for client, line in ledgers.items():
        limits = [limit for limit in (budget, float(line.get("epsilon_budget") or 0.0)) if limit > 0]
        following = line.get("epsilon_next")
        if following is not None and limits and float(following) > min(limits):
            found[int(client)] = Overrun(float(following), min(limits))
    return found


def too_few(clients: Iterable[int], over: Mapping[int, Overrun], minimum: int, budget: float, round: int) -> str | None:
    """Why ``round`` cannot take place, or None while at least ``minimum`` of ``clients`` can afford it.

    >>> over = {0: Overrun(2.1, 2.0)}
    >>> too_few([0, 1], over, 1, 2.0, 5) is None, too_few([0, 1], over, 2, 2.0, 5)
    (True, 'stopped before round 5: it would bring 1 of 2 clients past privacy.epsilon-budget = 2 (ε up to 2.100)')
    >>> too_few([0], over, 1, 0.0, 5)
    'stopped before round 5: it would bring 1 of 1 clients past their own ε budget, the least 2 (ε up to 2.100)'
    """
    everyone = set(clients) | set(over)
    if not over or len(everyone - set(over)) >= minimum:
        return None
    least = min(each.budget for each in over.values())
    whose = f"privacy.epsilon-budget = {least:g}" if least == budget else f"their own ε budget, the least {least:g}"
    past = f"{len(over)} of {len(everyone)} clients past {whose}"
    return f"{EARLY} {round}: it would bring {past} (ε up to {max(over.values()).epsilon:.3f})"
