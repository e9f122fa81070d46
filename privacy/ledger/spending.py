"""What every client has spent: by its own word, and what it may have spent since it was last heard.

A client charges its account before it works, and an answer that does not arrive was charged for all the same. So a
client's ε is that of its last ledger line only where every question since was answered. Where one was not, it is at
most ``epsilon_next``, which every line under an ε tells; where more were not, or it was never heard, nobody here knows.

>>> ledgers = {"0": {"epsilon": 1.0, "epsilon_next": 1.2}}
>>> spent(asked(ledgers, [0, 1])["0"]), unknown(asked(ledgers, [0, 1]))
(1.2, 1)
"""

from collections.abc import Iterable, Mapping
from typing import Any

Line = dict[str, float | int | str]
UNHEARD = "unheard"  # questions since the line, whose answers did not come


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
    told = line.get("epsilon_next", line.get("epsilon")) if line.get(UNHEARD) else line.get("epsilon")
    return None if told is None else float(told)


def unknown(ledgers: Mapping[str, Mapping[str, Any]]) -> int:
    """How many clients may have spent more than ``spent``, or have let more nats through than they told, where any has
    an ε or told nats. What the next answer brings in nats no line tells."""
    if not any({"epsilon", "channel_nats"} & line.keys() for line in ledgers.values()):
        return 0
    return sum(
        int(line.get(UNHEARD, 0)) > (1 if "epsilon_next" in line and "channel_nats" not in line else 0)
        for line in ledgers.values()
    )
