"""What every client has spent: by its own word, and what it may have spent since it was last heard.

A client charges its account before it works, and an answer that does not arrive was charged for all the same. So a
client's ε is that of its last ledger line only where every question since was answered. Where one was not, it is at
most ``epsilon_next``, which every line under an ε tells; where more were not, or it was never heard, nobody here knows.

What a client has spent never falls. A line that tells less than the one before is of another account: its state folder
is gone or is another one, or its number is another site's now. Then it has spent more than either tells (``heard``).

>>> ledgers = {"0": {"epsilon": 1.0, "epsilon_next": 1.2}}
>>> spent(asked(ledgers, [0, 1])["0"]), unknown(asked(ledgers, [0, 1]))
(1.2, 1)
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

Line = dict[str, float | int | str]
UNHEARD = "unheard"  # questions since the line, whose answers did not come
ANEW = "anew"  # 1: the client's account began anew since it was first heard
TOTALS = ("epsilon", "channel_nats")
JITTER = 0.01  # relative: an accountant that adds up on a grid may tell a little less for more


def heard(before: Line, line: Line, trained: bool) -> Line:
    """What stands of a client after its answer. ``trained``: in a round that it was not asked about before, so that it
    counts one more than in the line before."""
    both = [name for name in TOTALS if name in before and name in line]
    if not any(name in before for name in TOTALS):
        return line
    less = any(float(line[name]) < float(before[name]) * (1 - JITTER) for name in both)
    again = trained and float(line.get("rounds", math.inf)) <= float(before.get("rounds", -math.inf))
    if not (less or (again and not _grew(before, line)) or ANEW in before):
        return line
    least = {**before, "epsilon": spent(before) or 0.0}
    kept = [*both, *({"epsilon_next"} & before.keys() & line.keys())]
    return {**line, **{name: max(float(least[name]), float(line[name])) for name in kept}, ANEW: 1}


def _grew(before: Line, line: Line) -> bool:
    """Whether an account tells what it did and one more answer, whatever it says of rounds: these are counted in the
    run's folder at the site, which its owner may have removed."""
    due = float(before.get("epsilon_next", math.inf)) * (1 - JITTER)
    private = "epsilon" not in before or float(line.get("epsilon", 0.0)) >= due
    return private and float(line.get("channel_nats", math.inf)) > float(before.get("channel_nats", -math.inf))


def asked(ledgers: Mapping[str, Line], clients: Iterable[int]) -> dict[str, Line]:
    """The lines, with one more question to each of these clients."""
    found = {client: dict(line) for client, line in ledgers.items()}
    for client in map(str, clients):
        line = found.setdefault(client, {})
        line[UNHEARD] = int(line.get(UNHEARD, 0)) + 1
    return found


def uncharged(ledgers: Mapping[str, Line], client: int) -> dict[str, Line]:
    """The lines, where this client charged nothing for the last question: it said that it would not answer it, or
    answered what no ε covers."""
    line = dict(ledgers[str(client)])
    left = int(line.pop(UNHEARD, 1)) - 1
    others = {one: dict(known) for one, known in ledgers.items() if one != str(client)}
    return {**others, **({str(client): {**line, UNHEARD: left}} if left else {str(client): line} if line else {})}


def spent(line: Mapping[str, Any]) -> float | None:
    """The ε of a client: what it told, or what the next answer would have brought where one did not come."""
    names = ("epsilon", "epsilon_next") if line.get(UNHEARD) else ("epsilon",)
    return max((float(line[name]) for name in names if name in line), default=None)


def unknown(ledgers: Mapping[str, Mapping[str, Any]]) -> int:
    """How many clients may have spent more than ``spent``, or have let more nats through than they told, where any has
    an ε or told nats. What the next answer brings in nats no line tells."""
    if not any({"epsilon", "channel_nats"} & line.keys() for line in ledgers.values()):
        return 0
    return sum(
        ANEW in line or int(line.get(UNHEARD, 0)) > (1 if "epsilon_next" in line and "channel_nats" not in line else 0)
        for line in ledgers.values()
    )
