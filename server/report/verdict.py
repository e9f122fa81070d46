"""What a run's audits show, in a word, a line and reasons: the one source of what is said of a run anywhere.

The terminal, the report, the live page and ``prunella compare`` all show a ``RunVerdict``. Evidence of a leak comes
first. A clear verdict needs everything: a model that learned, a defense, every control rebuilt, every audit answered,
the worst case among them, and an attack that explained the updates. Even then the finding is about *this attack*; it
never shows that data are private.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prunella.attacks.score.level import Level, Line, level
from prunella.server.report.evidence import (
    CONTROLS,
    Control,
    control_behind,
    control_state,
    fitted,
    is_evidence,
    judged,
    of_kind,
    scored,
    single_in_words,
    sum_of,
    trouble,
    unfinished,
    untrue,
    valid_audits,
    worst_cases,
    worst_of,
)
from prunella.server.report.membership import FOUND, members_found
from prunella.server.report.reasons import notes, sentences
from prunella.server.report.state import RunState, run_state
from prunella.server.report.units import capital, plural
from prunella.server.store.schema import StoreLine

Tone = Literal["leak", "traces", "clear", "unproven", "silent"]
TONES: tuple[Tone, ...] = (
    "silent",
    "unproven",
    "clear",
    "traces",
    "leak",
)  # by how much they ask for: a metric's values
Answer = tuple[Tone, str, str]
CONSENTING = "at sites that let them be scored (--audit scores)"
ALL_CONSENTING = "with every site of a sum letting its images be seen (--audit pictures)"
TIME = "audit-seconds and portfolio.seconds: the smaller counts"
NEXT: dict[Tone, str] = {
    "leak": "Do not run this setting on data that must stay with its owners. Train behind a defense with an ε, or with "
    "more images in every step, and attest that run; docs/choose.md has the choices with what each was measured at.",
    "traces": "Take what came through for known to the server. Lower it with a defense that has an ε, or keep updates "
    "away from one image in one step, and attest that run.",
    "unproven": "Repeat the audit until its controls succeed: more rounds, another attack, more time "
    f"({TIME}). Until then nothing is known, and nothing should rest on it.",
    "silent": "Run again with audits: with audit-every at a round that the run reaches (1 audits every round), and "
    f"{CONSENTING}. Nothing is known of this run.",
    "clear": "Keep audits on in production, and attest again whenever data, model, attack or defense change.",
}
NEXT_UNFINISHED = {
    "failed": "Put right what the error says, and run again, or go on with --resume RUN. What is missing of a run may "
    "say otherwise.",
    "stopped": "Go on with --resume RUN, or run again. What is missing of a run may say otherwise.",
}
REST_ON_EPSILON = "Rest on the ε, which holds whatever an audit says, and on nothing else. To know what comes through "
IN_PART: Answer = (
    "traces",
    "Traces found",
    "In part: some of what the server rebuilt is nearer to a client's images than another image is.",
)
UNDESCRIBED: Answer = (
    "unproven",
    "Not judged",
    "run.json names no settings, so it is not known which defense the audits were behind: restore it.",
)
NEXT_UNDER_EPSILON = (
    "Take what came through for known to the server: an ε allows this much. Lower it (more noise, fewer rounds or "
    "steps), and attest that run."
)
UNDER_EPSILON: dict[Tone, str] = {
    "traces": NEXT_UNDER_EPSILON,
    "unproven": REST_ON_EPSILON + "today, repeat the audit until its controls succeed: more rounds, another attack, "
    f"more time ({TIME}).",
    "silent": REST_ON_EPSILON
    + "today, run again with audits: with audit-every at a round that the run reaches (1 audits "
    f"every round), and {CONSENTING}.",
}


@dataclass(frozen=True)
class RunVerdict:
    """``badge`` and ``headline`` are the verdict in a word and in a line; ``sentences`` give the reasons, the ``notes``
    being those that are shown wherever the headline is. ``worst`` is the audit that the run is summed up by, and
    ``worst_level`` what it shows; ``promise`` is the run's ε at its δ, or that there is none. ``summed``: of masked
    sums. Not ``bounded``: nothing may rest on the ε."""

    tone: Tone
    badge: str
    headline: str
    sentences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    worst: Line | None = None
    promise: str = ""
    worst_level: Level = "unknown"
    status: str = ""
    summed: bool = False
    bounded: bool = True

    @property
    def next_step(self) -> str:
        """What to do now."""
        return self._next.replace(CONSENTING, ALL_CONSENTING) if self.summed else self._next

    @property
    def _next(self) -> str:
        if self.tone in ("unproven", "silent") and self.status in NEXT_UNFINISHED:
            return NEXT_UNFINISHED[self.status]
        if not self.promise.startswith("ε") or (self.tone in ("unproven", "silent") and not self.bounded):
            return NEXT[self.tone]
        return UNDER_EPSILON.get(self.tone, NEXT[self.tone])


def _no_control(controls: set[Control]) -> Answer:
    if "failed" not in controls:
        return "unproven", "Proves nothing", "The audit proves nothing: no undefended control was run."
    text = "The audit proves nothing: this attack cannot judge this setting, since it failed on its undefended control."
    return "unproven", "Proves nothing", text


def _behind_the_defense(audits: Sequence[Line], state: RunState, who: str) -> Answer | None:
    """What public images give away, where ``who`` says that the clients' are not known to."""
    matched = [level(a) for a in scored(of_kind(audits, "control-defended")) if is_evidence(a, audits)]
    single = [level(a) for a in worst_cases(audits, state.defended)]
    how = "behind this run's defense" if state.defended else "without a defense"
    if "rebuilt" in matched:
        text = f"{who}, but public images, sent as a client sends its own, were rebuilt {how}."
        return "leak", "Defense failed", text
    if "rebuilt" in single:
        text = f"{who}, but {single_in_words(audits)}, which the server may ask for, is rebuilt {how}."
        return "traces", "Worst case rebuilt", text
    if "traces" in matched:
        return "traces", "Traces found", f"{who}, but the updates of public images give something away {how}."
    if "traces" in single:
        text = f"{who}, but {single_in_words(audits)}, which the server may ask for, gives something away {how}."
        return "traces", "Worst case traces", text
    return None


def _gaps(audits: Sequence[Line], state: RunState, damaged: int) -> Answer | None:
    """Why more may be unknown than the audits that are there show."""
    if failed := [a for a in audits if a["outcome"] == "failed"]:
        text = f"Nothing was rebuilt, but audits failed, so more is unknown: {trouble(failed[0])}."
        return "unproven", "Not judged", text
    if cut := unfinished(audits):
        text = f"Nothing was rebuilt, but an attack did not finish, or shows nothing: {trouble(cut[0])}."
        return "unproven", "Not judged", text
    if state.unfinished:
        text = "Nothing was rebuilt so far, but the run is not complete: audits may be missing."
        return "unproven", "Not finished", text
    if state.unaudited:
        return "unproven", "Not judged", f"Nothing was rebuilt, but {state.unaudited}."
    of_clients = max((a["round"] for a in scored(of_kind(audits, "client"))), default=1)
    rebuilt = (a for a in of_kind(audits, "control") if control_state(a) == "rebuilt")
    asked = max(a["round"] for a in (*of_kind(audits, "client"), *rebuilt))
    # Later rounds may have drawn clients that deny: those of the first half say little of the others.
    if 2 * of_clients < asked or of_clients == 1 < state.rounds:
        until = "in the first round" if of_clients == 1 else f"up to round {of_clients}"
        text = f"Nothing was rebuilt {until}, but no client's images were scored in a later one."
        return "unproven", "Not judged", text
    if damaged:
        return "unproven", "Not judged", "Nothing was rebuilt, but audits that cannot be read may say otherwise."
    return None


def _doubts(audits: Sequence[Line], state: RunState) -> Answer | None:
    """Why finding nothing is no clear verdict."""
    relying = scored(of_kind(audits, *CONTROLS))
    states = {control_behind(audit, audits) for audit in relying}
    states |= {control_state(audit) for audit in of_kind(audits, "control", "single")}
    if "failed" in states:
        text = "Nothing was rebuilt, but this attack failed on an undefended control: there it proves nothing."
        return "unproven", "Proves nothing", text
    if "missing" in states:
        text = "Nothing was rebuilt, but an audit had no undefended control: it proves nothing."
        return "unproven", "Proves nothing", text
    if state.doubt:
        badge, why = state.doubt
        text = f"Nothing was rebuilt, but {why}: what a model that learns would leak is unknown."
        return "unproven", badge, text
    if any(level(audit) == "unknown" for audit in relying):
        return "unproven", "Not judged", "The audit cannot be judged: scores came without their baselines."
    rounds = {kind: {a["round"] for a in of_kind(relying, kind)} for kind in CONTROLS}
    if not state.defended or not rounds["client"] <= rounds["control-defended"]:
        why = "no defense was audited" if state.defended else "nothing defends the updates"
        text = f"This attack rebuilt nothing, but {why}: a stronger attack may rebuild images."
        return "unproven", "Not defended", text
    if not all(map(fitted, relying)):
        text = "Nothing was rebuilt, but the attack could not explain the updates: one that can may rebuild images."
        return "unproven", "Not explained", text
    if not rounds["client"] <= rounds["single-defended"]:
        text = f"Nothing was rebuilt, but {single_in_words(audits)}, which the server may ask for, was not tried."
        return "unproven", "Worst case unknown", text
    return None


def _with_clients(audits: Sequence[Line], state: RunState, damaged: int) -> Answer:
    clients = scored(of_kind(audits, "client"))
    levels = [level(a) for a in clients if is_evidence(a, audits)]
    if "rebuilt" in levels:  # a picture that is there needs no control
        return "leak", "Leak found", "Yes: a curious server could rebuild images of an audited client."
    known = all(judged(a, audits) != "unknown" for a in clients)
    who = "Not the audited clients' images" if known else "The clients' images could not be judged"
    who = "The audited clients' images only in part" if "traces" in levels else who
    behind = _behind_the_defense(audits, state, who)
    if behind and (behind[0] == "leak" or "traces" not in levels):
        return behind
    if "traces" in levels:
        return IN_PART
    if why := next(filter(None, map(untrue, clients)), ""):
        return "unproven", "Not judged", f"It is not known what was rebuilt: {why}."
    if not levels:
        return _no_control({control_behind(audit, audits) for audit in clients})
    if "unknown" in levels:
        return "unproven", "Not judged", "The audit cannot be judged: scores came without their baselines."
    text = "Not with this attack: what it rebuilt is no nearer to the audited clients' images than another image is."
    return _gaps(audits, state, damaged) or _doubts(audits, state) or ("clear", "Nothing rebuilt", text)


def _without_clients(audits: Sequence[Line], state: RunState) -> Answer:
    nobody = capital(state.denial) if state.all_denied else "No client's images were scored"
    if behind := _behind_the_defense(audits, state, nobody):
        return behind
    if failed := [a for a in audits if a["outcome"] == "failed"]:
        return "unproven", "Not judged", f"{nobody}, and audits failed: {trouble(failed[0])}."
    if state.unfinished:
        return "unproven", "Not finished", f"{nobody}, and the run is not complete: audits may be missing."
    badge = "Audits denied" if state.all_denied else "Clients unknown"
    controls = {control_state(control) for control in of_kind(audits, "control")}
    single = {control_state(control) for control in of_kind(audits, "single")}
    if not controls and single == {"rebuilt"}:
        text = f"{nobody}: all that is known is that the attack rebuilds {single_in_words(audits)} without a defense."
        return "unproven", badge, text
    if not controls and single:
        what = single_in_words(audits)
        cut = [control["reason"] for control in of_kind(audits, "single") if control.get("reason")]
        text = f"The audit proves nothing: this attack does not even rebuild {what} without a defense."
        if cut:  # what an attack would have rebuilt that was stopped, nobody knows
            text = f"The audit proves nothing: it has not rebuilt even {what} without a defense ({cut[0]})."
        return "unproven", "Proves nothing", text
    if controls != {"rebuilt"}:
        return _no_control(controls)
    matched = scored(of_kind(audits, "control-defended")) if state.defended else []
    if matched and all(judged(a, audits) == "baseline" for a in matched):
        return "unproven", badge, f"{nobody}; of public images the defended update gave nothing away."
    return "unproven", badge, f"{nobody}: all that is known is that the attack works without a defense."


def _nothing(state: RunState, damaged: int) -> RunVerdict:
    """Of a run without an audit that can be read."""
    known = "nothing is known about what a curious server could rebuild."
    answer: Answer = "silent", "Not audited", f"Nothing was audited, so {known}"
    if state.unfinished:
        answer = "silent", "Not finished", f"Nothing was audited, and the run is not complete: {known}"
    if state.coming:
        left = f", with {plural(state.left, 'audit')} to come if the run goes on" if state.left else ""
        answer = "silent", "Not finished", f"No audit has ended yet{left}, so {known}"
    if damaged:
        answer = "unproven", "Not judged", "The run's audits cannot be read."
    told = notes([], state, damaged)
    return RunVerdict(
        *answer, told, told, None, state.promise, "unknown", state.status, state.summed, bounded=state.bounded
    )


def verdict(audits: Sequence[Line], state: RunState, damaged: int = 0) -> RunVerdict:
    """The headline and its reasons, from valid audits, the run's state and the number of audits that are ``damaged``.

    >>> verdict([], RunState()).badge
    'Not audited'
    """
    damaged = max(damaged, state.lost)
    if not audits:
        return _nothing(state, damaged)
    if scored(of_kind(audits, "client")):
        answer = _with_clients(audits, state, damaged)
    elif not (state.unfinished or damaged) and all(audit["kind"] == "membership" for audit in audits):
        known = "nothing is known about what a curious server could rebuild."
        answer = "silent", "Not audited", f"Only membership was asked, so {known}"
    else:
        answer = _without_clients(audits, state)
    if not state.described and answer[1] != "Leak found":  # what is found of clients is, whatever defended them
        answer = IN_PART if "traces" in map(level, scored(of_kind(audits, "client"))) else UNDESCRIBED
    if answer[0] not in ("leak", "traces") and members_found(audits):
        answer = "traces", "Members found", FOUND
    if summed := sum_of(audits):
        answer = answer[0], answer[1], f"{answer[2]} What was attacked is {summed}."
    reasons, beside = sentences(audits, state, answer[0], damaged), notes(audits, state, damaged)
    worst = worst_of(audits, state.defended)
    shown: Level = "unknown" if worst is None else judged(worst, audits)
    return RunVerdict(
        *answer, reasons, beside, worst, state.promise, shown, state.status, state.summed, bounded=state.bounded
    )


def judge(run: StoreLine, lines: Sequence[StoreLine], audits: Sequence[StoreLine]) -> RunVerdict:
    """The verdict of a stored run, from ``run.json`` and the lines of ``metrics.jsonl`` and ``audits.jsonl``."""
    valid, damaged = valid_audits(audits)
    return verdict(valid, run_state(run, lines, valid), damaged)
