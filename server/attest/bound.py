"""How large ε must be at least, from how well members are told apart: a lower bound that was measured.

Whoever tells members from outsiders with a true-positive rate t at a false-positive rate f refutes every (ε, δ) with
t > e^ε f + δ (Kairouz et al. 2015), so ε >= ln((t - δ) / f). Both rates are counted, and the bound takes the ends of
their Clopper-Pearson intervals that favour the client; it holds at 95 % for all figures of a client together
(Bonferroni), as far as its members are independent of each other, which those of one run are not quite. It says how
strong the attack was, never that ε is this small.

What the final model tells is whether an example was among those that were trained on, which is what a ledger's ε
bounds. What updates tell is whether an example was in their *batches*. Sampling hides that, and a ledger's ε counts on
it, so that telling batches apart better than it allows refutes nothing: these are held against the ε of the same steps
without amplification (``of_batches``).
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from scipy import special

from prunella.attacks.membership import MODEL, UPDATES
from prunella.attacks.score.membership import FALSE_POSITIVES
from prunella.core.config import Raw, parse_section
from prunella.privacy import DEFENSES
from prunella.privacy.accounting import Privacy
from prunella.privacy.chain import build_chain
from prunella.privacy.ledger.ledger import Ledger, charge

MISS = 0.025  # of the model's scores, and of the updates'
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
    (3.54, 0.0)
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


def measured_by_client(
    audits: Iterable[Mapping[str, Any]], delta: float, names: Collection[str] = MODEL
) -> dict[int, float]:
    """The lower bound on ε of every client of whom one of the scores ``names`` resolved a rate, from the lines of
    ``audits.jsonl``."""
    told: dict[int, float] = {}
    for audit in audits:
        scores = (audit.get("membership") or {}).get("scores") if audit["outcome"] == "scored" else None
        bound = measured_epsilon((each for name, each in (scores or {}).items() if name in names), delta)
        if bound is not None:
            told[audit["client"]] = max(bound, told.get(audit["client"], 0.0))
    return told


def promised_by_client(ledgers: Mapping[str, Mapping[str, Any]]) -> dict[int, float]:
    """The ε of every client that has one, from the ledger lines.

    >>> promised_by_client({"0": {"epsilon": 3}, "1": {"channel_nats": 9.0}})
    {0: 3.0}
    """
    return {int(client): float(line["epsilon"]) for client, line in ledgers.items() if "epsilon" in line}


def of_batches(ledgers: Mapping[str, Mapping[str, Any]], raw: Raw) -> dict[int, float]:
    """The ε, without amplification by sampling, of the steps that every client with an ε took in this run.

    >>> raw = {"defenses": "dp-sgd", "dp-sgd.noise-multiplier": 2.0}
    >>> found = of_batches({"0": {"epsilon": 0.1, "steps": 4.0}, "1": {}}, raw)
    >>> found.keys(), round(found[0], 1)
    (dict_keys([0]), 4.7)
    """
    names = [name.strip() for name in str(raw.get("defenses", "none")).split(",") if name.strip()]
    if set(names) - DEFENSES.keys():  # somebody's own: what it bounds is its own word
        return {}
    chain, privacy = build_chain(names, raw), parse_section(raw, "privacy", Privacy)
    found: dict[int, float] = {}
    for client, line in ledgers.items():
        if "epsilon" in line and line.get("steps"):
            bound = Ledger((charge(chain, client, int(line["steps"]), 1, 1),)).epsilon(privacy)
            found |= {int(client): bound} if bound is not None else {}
    return found


def exceeded(measured: Mapping[int, float], promised: Mapping[int, float]) -> list[int]:
    """The clients of whom more was measured than was promised to them: their accounting or a defense is wrong.

    >>> exceeded({0: 3.5, 1: 2.0, 2: 9.0}, {0: 3.0, 1: 3.0})
    [0]
    """
    return [client for client, bound in sorted(measured.items()) if bound > promised.get(client, math.inf)]


def refuted(
    audits: Sequence[Mapping[str, Any]], ledgers: Mapping[str, Mapping[str, Any]], raw: Raw
) -> list[int] | None:
    """The clients of whom the model or the updates showed more than they may; None where nothing can be compared."""
    delta = parse_section(raw, "privacy", Privacy).delta
    told = measured_by_client(audits, delta, UPDATES)
    pairs = [
        (measured_by_client(audits, delta, MODEL), promised_by_client(ledgers)),
        (told, of_batches(ledgers, raw) if told else {}),
    ]
    if not any(measured.keys() & promised.keys() for measured, promised in pairs):
        return None
    return sorted({client for pair in pairs for client in exceeded(*pair)})
