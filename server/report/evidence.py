"""What one audit is worth: how much leaked, the control that it relies on, and whether its attack fitted the update.

An attack that finds nothing is evidence only if it explained the update that it was given, and if the same attack, in
the same round, rebuilt public images whose update was made in the same way (kind ``control``). For the worst case, one
image in one step, that is ``single``. Of masked sums, every update here is the sum of all clients', and the worst case
one image of each.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from prunella.attacks.score.level import FITTED, FOUND, WORST, Level, Line, level, value
from prunella.server.report.many import together
from prunella.server.report.units import decibels, score
from prunella.server.store.schema import StoreError, StoreLine, check_audit

Control = Literal["rebuilt", "failed", "missing"]
Weakness = Literal["unfinished", "no control", "not explained"]
KINDS = {
    "control": "Control, undefended", "control-defended": "Control, defended", "single": "Worst case, undefended",
    "single-defended": "Worst case, defended", "client": "Client", "membership": "Membership of client",
}  # fmt: skip
CONTROLS = {"client": "control", "control-defended": "control", "single-defended": "single"}  # what a kind relies on
WORDS: dict[Level, str] = {
    "rebuilt": "an image rebuilt", "traces": "traces of an image", "baseline": "no more than another image shows",
    "unknown": "not judged",
}  # fmt: skip
FAILED = ("failed", "control-failed")  # outcomes of which nothing is known


def valid_audits(lines: Iterable[StoreLine]) -> tuple[list[StoreLine], int]:
    """The audits that fit the store, sorted by round with the controls first, and the number of those that do not. What
    several recognise is one question (``server.report.many``)."""
    valid, damaged, kinds = [], 0, list(KINDS)
    for line in lines:
        try:
            valid.append(check_audit(line))
        except StoreError:
            damaged += 1
    valid = sorted(valid, key=lambda a: (a["round"], kinds.index(a["kind"]), a["client"] or 0))
    return together(valid, CONTROLS), damaged


def who(audit: Line) -> str:
    """
    >>> who({"kind": "client", "client": 3}), who({"kind": "control", "client": 3}), who({"kind": "control-defended"})
    ('Client 3', 'Control, undefended, of client 3', 'Control, defended')
    >>> who({"kind": "client", "client": 3, "sites": 4}), who({"kind": "control", "client": None, "sites": 4})
    ('Client 3, in a sum of 4', 'Control, undefended, in a sum of 4')
    """
    name, client = KINDS[audit["kind"]], audit.get("client")
    if client is not None:
        name += f" {client}" if audit["kind"] in ("client", "membership") else f", of client {client}"
    return name + (f", in a sum of {audit['sites']}" if audit.get("sites") else "")


def sum_of(audits: Iterable[Line]) -> str:
    """What was attacked in the place of single updates, or "" where nothing was.

    >>> sum_of([{"sites": 4}, {"sites": 3}, {"sites": None}]), sum_of([{"sites": 4}]), sum_of([{}])
    ("the sum of 3 to 4 sites' updates", "the sum of 4 sites' updates", '')
    """
    sites = sorted({audit["sites"] for audit in audits if audit.get("sites")})
    numbers = " to ".join(map(str, (sites[0], sites[-1])[: len(sites)])) if sites else ""
    return f"the sum of {numbers} sites' updates" if sites else ""


def single_in_words(audits: Iterable[Line]) -> str:
    """What the kinds ``single`` are of."""
    return "one image of each site in one step" if sum_of(audits) else "one image in one step"


def of_kind(audits: Iterable[Line], *kinds: str) -> list[Line]:
    return [a for a in audits if a["kind"] in kinds]


def scored(audits: Iterable[Line]) -> list[Line]:
    return [a for a in audits if a["outcome"] == "scored"]


def control_state(control: Line | None) -> Control:
    """What the control's scores show, unless the run recorded that it failed."""
    if control is None:
        return "missing"
    if control["outcome"] in FAILED or control.get("ok") is False:
        return "failed"
    return "rebuilt" if level(control) == "rebuilt" else "failed"


def controls_of(audit: Line, audits: Iterable[Line]) -> list[Line]:
    """The undefended controls that an audit relies on: of its round and attack, its client's own where there is one."""
    wanted = CONTROLS.get(audit["kind"]), audit["attack"], audit["round"]
    found = [a for a in audits if (a["kind"], a["attack"], a["round"]) == wanted]
    own = [a for a in found if a.get("client") is not None and a["client"] == audit.get("client")]
    return own or [a for a in found if a.get("client") is None]


def control_behind(audit: Line, audits: Iterable[Line]) -> Control:
    """``rebuilt`` only if every control that the audit relies on was."""
    states = [control_state(control) for control in controls_of(audit, audits)]
    return "missing" if not states else "rebuilt" if set(states) == {"rebuilt"} else "failed"


def without_control(audits: Sequence[Line], pending: Collection[int] = ()) -> list[Line]:
    """The clients' scored audits whose control has no result: it is not there, or it failed before it had one. Of
    ``pending`` rounds a control may still come."""
    found = []
    for audit in scored(of_kind(audits, "client")):
        controls = controls_of(audit, audits)
        if audit["round"] not in pending and (not controls or any(c["outcome"] == "failed" for c in controls)):
            found.append(audit)
    return found


def is_evidence(audit: Line, audits: Iterable[Line]) -> bool:
    """Whether an audit shows anything: its control was rebuilt, or it found something itself. What is above the
    baselines needs no control; only finding nothing does."""
    return level(audit) in FOUND or control_behind(audit, audits) == "rebuilt"


def fitted(audit: Line) -> bool:
    """Whether the attack explained the update it was given nearly whole. One that compares with no update did not, nor
    one whose objective is no distance, since it is below 0 by more than rounding."""
    return audit.get("objective") is not None and bool(abs(audit["objective"]) <= FITTED)


def unfinished(audits: Iterable[Line]) -> list[Line]:
    """Scored audits that show nothing: the attack was cut short or explained no update, and found nothing."""
    relying = (a for a in scored(audits) if a["kind"] in CONTROLS and level(a) not in FOUND)
    return [a for a in relying if a.get("ok") is False or a.get("reason")]


def weakness(audit: Line, audits: Sequence[Line]) -> Weakness | None:
    """Why finding nothing in an update shows nothing, or None where it does show something: the attack finished,
    rebuilt the control and explained the update. An undefended canary has no control: not rebuilt, it shows nothing."""
    if unfinished([audit]):
        return "unfinished"
    if control_behind(audit, audits) != "rebuilt":
        return "no control"
    return None if fitted(audit) else "not explained"


def judged(audit: Line, audits: Sequence[Line]) -> Level:
    """What an audit shows, as every table, record and sentence names it: ``level``, and unknown where it finds nothing
    and that shows nothing (``weakness``)."""
    found = level(audit)
    return "unknown" if found == "baseline" and weakness(audit, audits) else found


def unexplained(audits: Sequence[Line]) -> list[Line]:
    """Those that would show that nothing was found, had the attack explained the update."""
    return [a for a in scored(audits) if level(a) == "baseline" and weakness(a, audits) == "not explained"]


def worst_first(found: Iterable[Line], audits: Sequence[Line]) -> list[Line]:
    """The most leaking of the ``found`` first: by what each shows among all ``audits``, then PSNR, then SSIM."""

    def key(audit: Line) -> tuple[int, float, float]:
        psnr, ssim = value(audit, "psnr"), value(audit, "ssim")
        return WORST.index(judged(audit, audits)), -1.0 if psnr is None else psnr, -1.0 if ssim is None else ssim

    return sorted(found, key=key, reverse=True)


def worst_cases(audits: Sequence[Line], defended: bool) -> list[Line]:
    """The audits of one public image in one step, as this run's clients would have answered."""
    return [a for a in scored(of_kind(audits, "single-defended" if defended else "single")) if is_evidence(a, audits)]


def worst_of(audits: Sequence[Line], defended: bool) -> Line | None:
    """The audit that a run is summed up by, and that its headline is of: the most leaking of a client, or of public
    images sent in the same way, or of the worst case, where that gave more away. A client's traces come before a worst
    case that was rebuilt, since they are of what was sent."""
    clients = worst_first(scored(of_kind(audits, "client")), audits)[:1]
    defended_controls = [a for a in scored(of_kind(audits, "control-defended")) if is_evidence(a, audits)]
    matched = worst_first(defended_controls, audits)[:1]
    single = worst_first(worst_cases(audits, defended), audits)[:1]
    found = [*clients, *matched, *([] if clients and level(clients[0]) == "traces" else single)]
    return max(found, key=lambda audit: WORST.index(judged(audit, audits)), default=None)


def _when(audit: Line) -> str:
    """Audits outside a run have round 0."""
    return f", round {audit['round']}" if audit["round"] else ""


def scores_in_words(audit: Line, found: Level) -> str:
    """``found`` is what the audit shows (``judged``), which may be less than the client reported."""
    if not audit.get("scores"):
        told = "as the client reported without numbers"
        if found == "unknown":
            other = {"": "and the client told no numbers", UNTRUE: "the images named as the truth make another update"}
            once = "the images named as the truth make this update only once they are normalised"
            told = other.get(untrue(audit), once)
        return f"{WORDS[found]}, {told}{_when(audit)}"
    return f"PSNR {decibels(value(audit, 'psnr'))}, SSIM {score(value(audit, 'ssim'))}{_when(audit)}"


def in_words(audit: Line, found: Level) -> str:
    """An audit that shows ``found`` (``judged``) in a line, as every table has it.

    >>> line = {"kind": "client", "client": 3, "round": 5, "attack": "sgi", "defense": "dgp", "level": "traces"}
    >>> in_words(line, "traces")
    'Client 3: traces of an image, as the client reported without numbers, round 5 (sgi against dgp)'
    """
    # What is legible by its correlation, told apart or not explained may have a PSNR that looks harmless.
    shown = f"{WORDS[found]}, " if audit.get("scores") and found != "baseline" else ""
    attack = audit["attack"] + (f", {audit['found_by']}" if audit.get("found_by") else "")
    return f"{who(audit)}: {shown}{scores_in_words(audit, found)} ({attack} against {audit['defense']})"


def nearest_by_chance(scores: Mapping[str, Any]) -> float | None:
    """How many images are nearest to their own reconstruction without a leak: of other people's images or, where none
    were at hand, of noise. None of an older release's audit, which did not measure it.

    >>> nearest_by_chance({"iip": 0.8, "iip_random": 0.4, "iip_other": 0.5}), nearest_by_chance({"iip": 0.8})
    (0.5, None)
    """
    other = scores.get("iip_other")
    return scores.get("iip_random") if other is None else other


UNTRUE = (
    "trained on as the trace says, the images named as the truth make another update: augmented images, another batch, "
    "loss, rate or optimizer, a defense of the app's own; look at its pictures"
)
NORMALISED = (
    "the images named as the truth make this update once they are normalised; let the audit's model do that, as "
)


def untrue(audit: Line) -> str:
    """Why what an audit found was held against images that did not make the update; empty where it was not."""
    reason = str(audit.get("reason") or "")
    return reason if reason == UNTRUE or reason.startswith(NORMALISED) else ""


def trouble(audit: Line) -> str:
    """Which audit failed, and why.

    >>> trouble({"kind": "client", "client": 3, "round": 5, "reason": "the objective is not finite"})
    'client 3, round 5 (the objective is not finite)'
    >>> trouble({"kind": "client", "client": 3, "round": 5, "outcome": "scored", "ok": False})
    'client 3, round 5 (the guesses do not explain the update)'
    """
    whose, scored_but = who(audit), audit.get("outcome") == "scored" and audit.get("ok") is False
    reason = audit.get("reason") or ("the guesses do not explain the update" if scored_but else "no reason recorded")
    return f"{whose[0].lower()}{whose[1:]}{_when(audit)} ({reason})"
