"""How large ε must be at least, from how well members are told apart: a lower bound that was measured.

Whoever tells members from outsiders with a true-positive rate t at a false-positive rate f refutes every (ε, δ) with
t > e^ε f + δ (Kairouz et al. 2015), so ε >= ln((t - δ) / f). Both rates are counted, and the bound takes the ends of
their Clopper-Pearson intervals that favour the client; it holds at 95 % for all figures of a client together
(Bonferroni). It says how strong the attack was, never that ε is this small.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from scipy import special

from prunella.attacks.score.membership import FALSE_POSITIVES

MISS = 0.05
_RATES = dict(zip(("strict", "loose"), FALSE_POSITIVES, strict=True))


def lower(hits: int, many: int, miss: float) -> float:
    """The Clopper-Pearson lower end of a rate.

    >>> lower(0, 50, 0.05), round(lower(50, 50, 0.05), 3)
    (0.0, 0.942)
    """
    return float(special.betaincinv(hits, many - hits + 1, miss)) if hits else 0.0


def upper(hits: int, many: int, miss: float) -> float:
    return 1 - lower(many - hits, many, miss)


def measured_epsilon(scores: Iterable[Mapping[str, Any]], delta: float) -> float | None:
    """The largest lower bound on ε of a client's membership scores (``store.schema.MembershipScore``), or None where
    no rate could be resolved. 0: members were not told apart.

    >>> told = {"members": 200, "outsiders": 1000, "auc": 0.9, "strict": None, "loose": 150}
    >>> round(measured_epsilon([told], 1e-5), 2), measured_epsilon([{**told, "loose": 2}], 1e-5)
    (3.62, 0.0)
    """
    rows = list(scores)
    asked = [(row, name) for row in rows for name in _RATES if row.get(name) is not None]
    if not asked:
        return None
    miss, best = MISS / (2 * len(asked)), 0.0
    for row, name in asked:
        true = lower(row[name], row["members"], miss)
        false = upper(int(row["outsiders"] * _RATES[name]), row["outsiders"], miss)
        best = max(best, math.log((true - delta) / false) if true > delta else 0.0)
    return best


def measured_by_client(audits: Iterable[Mapping[str, Any]], delta: float) -> dict[int, float]:
    """The lower bound on ε of every client of whom membership inference resolved a rate, from the lines of
    ``audits.jsonl``."""
    told: dict[int, float] = {}
    for audit in audits:
        scores = (audit.get("membership") or {}).get("scores") if audit["outcome"] == "scored" else None
        bound = measured_epsilon(scores.values(), delta) if scores else None
        if bound is not None:
            told[audit["client"]] = max(bound, told.get(audit["client"], 0.0))
    return told


def promised_by_client(ledgers: Mapping[str, Mapping[str, Any]]) -> dict[int, float]:
    """The ε of every client that has one, from the ledger lines.

    >>> promised_by_client({"0": {"epsilon": 3}, "1": {"channel_nats": 9.0}})
    {0: 3.0}
    """
    return {int(client): float(line["epsilon"]) for client, line in ledgers.items() if "epsilon" in line}


def exceeded(measured: Mapping[int, float], promised: Mapping[int, float]) -> list[int]:
    """The clients of whom more was measured than was promised to them: their accounting or a defense is wrong.

    >>> exceeded({0: 3.5, 1: 2.0, 2: 9.0}, {0: 3.0, 1: 3.0})
    [0]
    """
    return [client for client, bound in sorted(measured.items()) if bound > promised.get(client, math.inf)]
