"""Many audits of one run are one question: recognition is no evidence where so many tries give as much by chance.

One audit tells originals from their look-alikes by chance in one of twenty (``attacks.score.gallery``), so that a run
of a dozen that leaks nothing would be called a leak every other time. Of several, an audit's recognition stands

* by itself, at a level that is divided by their number (Bonferroni); or
* as it did, where all of its kind, or those of its kind's one client or of one size, together tell more apart than
  chance does: large batches would hide what is told of single images, and many clients what is told of one.

What a client's word alone says cannot be asked again: it stands. So does an audit behind a defense that transforms
images, or that is somebody's own, since finding less there shows nothing. No other score is touched: these compare with
32 draws of other images, and by a margin.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from prunella.attacks.score.level import Line, level
from prunella.core.foreign import is_foreign

CHANCE = 0.05  # of a run that leaks nothing: half for its audits one by one, half for all together


def together(audits: Sequence[dict[str, Any]], kinds: Collection[str]) -> list[dict[str, Any]]:
    """The audits, those of the ``kinds`` that a verdict looks for leaks in with the recognition that is left."""
    asked = [audit for audit in audits if audit["kind"] in kinds and _askable(audit)]
    if len(asked) < 2:
        return list(audits)
    pools: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for audit in asked:
        kind, size = audit["kind"], (_recognition(audit) or {}).get("images")
        for pool in ((kind,), (kind, "client", audit.get("client")), (kind, "images", size)):
            pools.setdefault(pool, []).append(audit)
    several = list({tuple(map(id, pool)): pool for pool in pools.values() if len(pool) > 1}.values())
    stands = {id(audit) for pool in several if _told_apart(pool, CHANCE / 2 / len(several)) for audit in pool}
    weaker = {id(audit) for audit in asked} - stands
    return [_at(audit, CHANCE / 2 / len(asked)) if id(audit) in weaker else audit for audit in audits]


def _recognition(audit: Line) -> Mapping[str, float] | None:
    found = (audit.get("scores") or {}).get("recognition")
    return found if isinstance(found, Mapping) and found.get("images") else None


def _askable(audit: Line) -> bool:
    """Whether the scores say all that is known of what the audit shows."""
    if audit["outcome"] != "scored" or _recognition(audit) is None:
        return False
    from prunella.privacy import transforms  # slow to import, and most of what reads runs has nothing to ask again

    names = str(audit["defense"]).split(",")
    if transforms(names) or any(map(is_foreign, names)):
        return False
    return level({"scores": audit["scores"]}) == level(audit)


def _told_apart(audits: Sequence[Line], chance: float) -> bool:
    """Whether several audits together tell more originals apart than ``chance`` would allow."""
    from scipy.special import betainc

    counts = [found for audit in audits if (found := _recognition(audit)) is not None]
    hits, images = sum(each["hits"] for each in counts), sum(each["images"] for each in counts)
    guessed = sum(each["chance"] * each["images"] for each in counts) / images
    return bool(hits and betainc(hits, images - hits + 1, guessed) < chance)


def _at(audit: dict[str, Any], chance: float) -> dict[str, Any]:
    """The audit with the Clopper-Pearson lower bound of its recognition at another level; a word that it came with was
    of these scores."""
    from scipy.special import betaincinv

    found = audit["scores"]["recognition"]
    hits, images = found["hits"], found["images"]
    low = float(betaincinv(hits, images - hits + 1, chance)) if hits else 0.0
    scores = audit["scores"] | {"recognition": {**found, "low": min(low, found["low"])}}
    return audit | {"scores": scores, "level": None}
