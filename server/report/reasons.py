"""The reasons of a verdict, as sentences: those shown wherever the headline is (``notes``), and all of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from prunella.attacks.score.level import FOUND, Level, Line, level, value
from prunella.server.report.evidence import (
    CONTROLS,
    Weakness,
    control_state,
    in_words,
    is_evidence,
    judged,
    nearest_by_chance,
    of_kind,
    scored,
    scores_in_words,
    single_in_words,
    sum_of,
    trouble,
    unexplained,
    unfinished,
    weakness,
    worst_first,
)
from prunella.server.report.membership import membership_notes
from prunella.server.report.state import RunState
from prunella.server.report.units import capital, decibels, in_rounds, percent, plural

MOST = 3  # failed audits that are named one by one
WHY: dict[Weakness | None, str] = {
    "unfinished": "an attack on it did not finish, or can show nothing",
    "no control": "no undefended update like it was rebuilt",
    "not explained": "the attack did not explain its update",
    None: "there is no baseline",
}


def _named(audits: Sequence[Line]) -> str:
    """The first few, those of one reason together."""
    whose: dict[str, list[str]] = {}
    for audit in audits[:MOST]:
        who, _, why = trouble(audit).partition(" (")
        whose.setdefault(why, []).append(who)
    words = [f"{' and '.join(each)} ({why}" for why, each in whose.items()]
    return "; ".join(words + [f"{len(audits) - MOST} more"] if len(audits) > MOST else words)


def _failures(audits: Sequence[Line]) -> list[str]:
    failed = [a for a in audits if a["outcome"] == "failed"]
    return [f"{plural(len(failed), 'audit')} failed, so more is unknown: {_named(failed)}."] if failed else []


def _why_failed(control: Line) -> str:
    """Why a control that has a result failed."""
    if level(control) == "rebuilt":  # a picture that is there is no failure to see
        reason = str(control.get("reason") or "")
        cut = f" ({reason})" if reason and "explain" not in reason else ""  # or the sentence says it twice
        return f"it rebuilt part of it, and does not explain the whole update{cut}"
    unsaid = "one image in one step is not rebuilt" if control["kind"] == "single" else "no reason recorded"
    return str(control.get("reason") or unsaid)


def _failed_controls(audits: Sequence[Line]) -> list[str]:
    controls = of_kind(audits, "control", "single")
    failed = [c for c in controls if control_state(c) == "failed" and c["outcome"] != "failed"]
    if not failed:
        return []
    by_reason: dict[str, list[int]] = {}
    for control in failed[:MOST]:
        by_reason.setdefault(_why_failed(control), []).append(int(control["round"]))
    named = "; ".join(
        f"{in_rounds(rounds)}: {reason}" if any(rounds) else reason for reason, rounds in by_reason.items()
    )
    more = f"; {len(failed) - MOST} more" if len(failed) > MOST else ""
    return [
        f"The attack failed on its undefended control in {len(failed)} of {plural(len(controls), 'trial')} "
        f"({named}{more}). Finding nothing there proves nothing."
    ]


def _unexplained(audits: Sequence[Line]) -> list[str]:
    found, relying = unexplained(audits), scored(of_kind(audits, *CONTROLS))
    of = f"{len(found)} of {plural(len(relying), 'audit')}"
    return [f"The attack did not explain the update in {of}: that it found nothing there shows nothing."] * bool(found)


def _why_unknown(audit: Line, audits: Sequence[Line]) -> str:
    """Why it is not known what an audit shows."""
    return WHY[weakness(audit, audits) if level(audit) == "baseline" else None]


def _worst_case(audits: Sequence[Line], state: RunState) -> list[str]:
    """One image in one step, or one of each site, told as what it is: not what clients did, but what the server may ask
    for."""
    if not of_kind(audits, "client", "control-defended"):
        return []
    what = f"The worst case, {single_in_words(audits)}, which the server may ask for"
    kind = "single-defended" if state.defended else "single"
    found = [a for a in scored(of_kind(audits, kind)) if is_evidence(a, audits)]
    if not found:
        return [f"{what}, was not judged."]
    worst = worst_first(found, audits)[0]
    shown = judged(worst, audits)
    how = f"behind {worst['defense']}" if state.defended else "without a defense"
    words: dict[Level, str] = {
        "rebuilt": f"is rebuilt {how}", "traces": f"gives something away {how}",
        "baseline": f"gave nothing away to this attack {how}",
        "unknown": f"was not judged: {_why_unknown(worst, audits)}",
    }  # fmt: skip
    return [f"{what}, {words[shown]} ({scores_in_words(worst, shown)})."]


def _summed(audits: Sequence[Line]) -> list[str]:
    """What an attack on a sum leaves open, of which nothing is said elsewhere."""
    found = sum_of(audits)
    if not found:
        return []
    return [
        f"What was attacked is {found}, as a server that follows the protocol sees it. A server that lies was not "
        "tried: it can invent clients, unless the sites know each other's keys (--sum-peers), plant a model, which "
        "clients refuse where they recognise it, or send one model in two rounds and leave a client out of one. Then "
        "the difference of the two sums is that client's update and what the others drew anew, unless noise hides it; "
        "sites that name each other (--sum-with) are in such sums together or in none."
    ]


def notes(audits: Sequence[Line], state: RunState, damaged: int = 0) -> tuple[str, ...]:
    """What must stand wherever the headline does: denials, failures, a model that did not learn, the worst case, ε.
    Of the audits ``damaged`` could not be read."""
    silent = f"{capital(state.denial)}: nothing is known of what their updates give away."
    if sum_of(audits):
        silent = (
            f"{capital(state.denial)}: what is rebuilt of a sum with their updates may be theirs, so nobody scores it."
        )
    found = [silent] if state.denial else []
    found += [f"{capital(state.unheard)}: nothing is known of what their updates give away."] if state.unheard else []
    found += _summed(audits)
    found += [f"{plural(damaged, 'audit')} could not be read, so more is unknown."] if damaged else []
    found += [f"{capital(state.unaudited)}."] if state.unaudited and audits else []
    if audits and (state.unfinished or state.coming):
        found.append("The run is not complete, so audits may be missing, and any of them may show more than these.")
    found += _failures(audits) + _failed_controls(audits)
    if cut := unfinished(audits):
        found.append(f"{plural(len(cut), 'audit')} did not finish, or can show nothing: {_named(cut)}.")
    found += _unexplained(audits)
    if audits and state.doubt:
        found.append(f"{capital(state.doubt[1])}, so the audits say little about a model that learns.")
    found += _worst_case(audits, state) + membership_notes(audits)
    if state.refuted:
        whose = plural(state.refuted, "client")
        found.append(
            f"An attack on {whose} showed more than the ε that was promised: the accounting or the implementation is "
            "wrong. Do not rely on it."
        )
    return tuple(found + ([f"Guaranteed: {state.guarantee}."] if state.guarantee else []))


def _beside(chance: float | None) -> str:
    return "" if chance is None else f" (by chance: {percent(chance)})"


def _recognised(scores: Mapping[str, Any]) -> list[str]:
    """What a reconstruction names: its original among look-alikes, its own image in the batch, the labels."""
    found, seen, images = [], scores.get("recognition"), int(scores.get("images") or 0)
    if isinstance(seen, Mapping) and {"hits", "images", "gallery", "chance"} <= seen.keys():
        found.append(
            f"it picks {seen['hits']:.0f} of {plural(int(seen['images']), 'original')} out of {seen['gallery']:.0f} "
            f"look-alikes (by chance: {percent(seen['chance'])})"
        )
    if images > 1 and scores.get("iip") is not None:
        found.append(f"the own image is nearest for {percent(scores['iip'])}{_beside(nearest_by_chance(scores))}")
    if scores.get("label_accuracy") is not None:
        found.append(f"labels named: {percent(scores['label_accuracy'])}{_beside(scores.get('label_chance'))}")
    return found


def _clients(audits: Sequence[Line]) -> list[str]:
    clients = scored(of_kind(audits, "client"))
    if not clients:
        return []
    worst = worst_first(clients, audits)[0]
    other = value(worst, "psnr", "other")
    beside = f"; another image would score PSNR {decibels(other)}" if other is not None else ""
    found = [
        f"{plural(len(clients), 'client audit')} scored; the worst: {in_words(worst, judged(worst, audits))}{beside}."
    ]
    if named := _recognised(worst.get("scores") or {}):
        found.append(f"Of that audit's reconstruction: {'; '.join(named)}.")
    unproven = sum(not is_evidence(a, audits) for a in clients)
    if unproven:
        these = plural(unproven, "audit")
        found.append(f"Of these, {these} found nothing and had a control that failed or is missing: no proof.")
    return found


def _controls(audits: Sequence[Line], state: RunState) -> list[str]:
    rebuilt = [c for c in of_kind(audits, "control") if control_state(c) == "rebuilt"]
    found = []
    if not of_kind(audits, "control"):
        found = ["No undefended control was run, so an attack that finds nothing shows nothing."]
    elif rebuilt:
        best = worst_first(rebuilt, audits)[0]
        how = "public images, sent as a client sends its own but without a defense"
        found = [f"Control: of {how}, the same attack rebuilds some ({scores_in_words(best, judged(best, audits))})."]
    defended = [a for a in scored(of_kind(audits, "control-defended")) if is_evidence(a, audits)]
    if not defended:
        return found
    worst = worst_first(defended, audits)[0]
    shown = judged(worst, audits)
    # Where no control was rebuilt, nothing before this sentence has named the images or the attack.
    images, it = (
        ("the same images", "it") if rebuilt else ("public images, sent as a client sends its own,", "the attack")
    )
    words: dict[Level, str] = {
        "rebuilt": f"does not stop {it}",
        "traces": f"weakens {it} and still lets something through",
        "baseline": f"brings {it} down to the level of another image",
        "unknown": f"could not be judged, because {_why_unknown(worst, audits)}",
    }
    found.append(f"On {images} this run's defense {words[shown]} ({scores_in_words(worst, shown)}).")
    if shown in FOUND and (named := _recognised(worst.get("scores") or {})):
        found.append(f"Of these images' reconstruction: {'; '.join(named)}.")
    return found


def sentences(audits: Sequence[Line], state: RunState, tone: str, damaged: int = 0) -> tuple[str, ...]:
    """All reasons, the notes among them."""
    found = [*_clients(audits), *notes(audits, state, damaged), *_controls(audits, state)]
    if not state.defended:
        found.append("This run has no defense: nothing stands between the updates and a stronger attack.")
    if tone in ("clear", "traces"):
        found.append("A stronger attack, or one that knows more, may rebuild more than this one did.")
    return tuple(found)
