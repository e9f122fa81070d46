"""What a run's membership audits say, in words: who was told apart, how much better than chance, and what is unknown.

Finding members needs no control: the client's own examples that were not trained on are the comparison. Not finding
them shows nothing of a stronger attack, so it never makes a verdict clearer.

>>> line = {"kind": "membership", "client": 2, "outcome": "scored", "membership": {"word": "unresolved"}}
>>> membership_notes([line])[0][:35]
'Membership of client 2: not judged,'
"""

from collections.abc import Mapping, Sequence
from typing import Any

from prunella.attacks.score.level import Line
from prunella.attacks.score.membership import FALSE_POSITIVES, LEAST, auc_limits, limits
from prunella.server.report.evidence import of_kind, scored, who
from prunella.server.report.units import percent

Scores = Mapping[str, Mapping[str, Any]]
FOUND = (
    "No image is known to be rebuilt, but a curious server can tell which examples a client trained on better than by "
    "chance."
)
WORDS = {
    "found": "which examples it trained on in the audited rounds can be told better than by chance",
    "not-found": "which examples it trained on in the audited rounds was not told better than by chance, in a test "
    "that counts every score and every client asked, where one score's interval may lie above chance; a stronger "
    "attack might",
    "unresolved": f"not judged, since fewer than {LEAST} of its examples were trained on, or fewer than {LEAST} not",
}  # fmt: skip


REACHES = (
    "; the interval of each figure reaches chance: it is two-sided and of rounded numbers, where the test that finds "
    "them is one-sided and of exact ones, and finds some in at most one run of twenty that has none"
)


def _answers(audits: Sequence[Line]) -> list[Line]:
    return [a for a in scored(of_kind(audits, "membership")) if a.get("membership")]


def members_found(audits: Sequence[Line]) -> bool:
    """Whether any client says that its training examples can be told from others."""
    return any(audit["membership"]["word"] == "found" for audit in _answers(audits))


def _rate(scores: Scores, name: str, false: float) -> str:
    """The best TPR at an FPR of ``false``, or why there is none."""
    known = [(each[name] / each["members"], each) for each in scores.values() if each.get(name) is not None]
    if not known:
        most = max(each["outsiders"] for each in scores.values())
        return f"{percent(false)} of false alarms cannot be resolved with at most {most} outsiders"
    share, best = max(known, key=lambda pair: pair[0])
    low, high = limits(best[name], best["members"], len(scores))
    return (
        f"at {percent(false)} of false alarms {percent(share)} of {best['members']} are caught ({percent(low)} to "
        f"{percent(high)}; by chance: {percent(false)})"
    )


def figures(scores: Scores) -> list[str]:
    """The best of all scores in each figure, with intervals that hold for all of them together."""
    best = max(scores.values(), key=lambda each: float(each["auc"]))
    low, high = auc_limits(best["auc"], best["members"], best["outsiders"], len(scores))
    pairs = (
        f"an example that was trained on outranks one that was not in {percent(best['auc'])} of pairs ({percent(low)} "
        f"to {percent(high)}; by chance: {percent(0.5)})"
    )
    rates = [_rate(scores, name, false) for name, false in zip(("loose", "strict"), FALSE_POSITIVES[::-1], strict=True)]
    return [pairs, *rates]


def _clear(scores: Scores) -> bool:
    """Whether a figure's interval, as it is shown, lies above chance."""
    for each in scores.values():
        above = [auc_limits(each["auc"], each["members"], each["outsiders"], len(scores))[0] > 0.5]
        for name, false in zip(("strict", "loose"), FALSE_POSITIVES, strict=True):
            above.append(each.get(name) is not None and limits(each[name], each["members"], len(scores))[0] > false)
        if any(above):
            return True
    return False


def membership_notes(audits: Sequence[Line]) -> list[str]:
    """A sentence for each client that answered."""
    found = []
    for audit in _answers(audits):
        told = audit["membership"]
        silent = told.get("scores") is None and told["word"] != "unresolved"
        beside = ", as it reports without numbers" if silent else ""
        if told.get("scores"):
            beside = f": {'; '.join(figures(told['scores']))}"
            beside += REACHES if told["word"] == "found" and not _clear(told["scores"]) else ""
        found.append(f"{who(audit)}: {WORDS[told['word']]}{beside}.")
    return found
