"""What the audits of a run show, as pure functions over the lines of ``audits.jsonl``.

An attack that finds nothing is evidence only if the same attack, in the same run, rebuilt an undefended control. Even
then the finding is about *this attack*; it never shows that the data are private. So a client audit is judged in two
steps: ``level`` compares its worst image with the scores of another image, and ``control_of`` finds the control that
it relies on.

Worst is the most leaking image. PSNR in dB, SSIM and NMI in [0, 1]; higher leaks more for all three.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from prunella.attacks.score.level import ORDER, Level, Line, level, value
from prunella.server.report.units import decibels, plural, score

Control = Literal["rebuilt", "failed", "missing"]
WORDS: dict[Level, str] = {
    "rebuilt": "an image rebuilt", "traces": "traces of an image", "baseline": "no more than another image shows",
    "unknown": "not judged",
}  # fmt: skip
FAILED = ("failed", "control-failed")  # outcomes of which nothing is known
Tone = Literal["leak", "traces", "clear", "unproven", "silent"]


@dataclass(frozen=True)
class RunVerdict:
    """``badge`` and ``headline`` are the verdict in a word and in a line; ``sentences`` give the reasons."""

    tone: Tone
    badge: str
    headline: str
    sentences: tuple[str, ...]


def control_state(control: Line | None) -> Control:
    """What the run recorded about its control or, if it recorded nothing, what the control's scores show."""
    if control is None:
        return "missing"
    if control["outcome"] in FAILED or control.get("ok") is False:
        return "failed"
    return "rebuilt" if control.get("ok") or level(control) == "rebuilt" else "failed"


def control_of(audit: Line, audits: Iterable[Line]) -> Line | None:
    """The undefended control that an audit relies on: the same attack, in its round or the last one before it."""
    controls = [a for a in audits if a["kind"] == "control" and a["attack"] == audit["attack"]]
    before = [a for a in controls if a["round"] <= audit["round"]]
    return max(before, key=lambda a: a["round"], default=None)


def _is_evidence(audit: Line, controls: Iterable[Line]) -> bool:
    """Whether an audit is evidence: its control was rebuilt, or it rebuilt an image itself."""
    return level(audit) == "rebuilt" or control_state(control_of(audit, controls)) == "rebuilt"


def worst_first(audits: Iterable[Line]) -> list[Line]:
    """The most leaking audit first: by level, then PSNR, then SSIM."""

    def key(audit: Line) -> tuple[int, float, float]:
        psnr, ssim = value(audit, "psnr"), value(audit, "ssim")
        return ORDER.index(level(audit)), -1.0 if psnr is None else psnr, -1.0 if ssim is None else ssim

    return sorted(audits, key=key, reverse=True)


def scores_in_words(audit: Line) -> str:
    if not audit.get("scores"):
        return f"{WORDS[level(audit)]}, as the client reported without numbers, round {audit['round']}"
    return f"PSNR {decibels(value(audit, 'psnr'))}, SSIM {score(value(audit, 'ssim'))}, round {audit['round']}"


def _control_sentence(controls: Sequence[Line]) -> str:
    if not controls:
        return "No undefended control was run, so an attack that finds nothing shows nothing."
    failed = [c for c in controls if control_state(c) != "rebuilt"]
    if failed:
        rounds = ", ".join(str(c["round"]) for c in failed[:8])
        return (
            f"The attack did not rebuild its undefended control in {len(failed)} of {plural(len(controls), 'trial')} "
            f"(round {rounds}): where that is so, finding nothing on a client proves nothing."
        )
    best = worst_first(controls)[0]
    return f"Control: on control images without a defense the same attack works ({scores_in_words(best)})."


def _defended_sentence(defended: Sequence[Line], controls: Sequence[Line]) -> list[str]:
    scored = [a for a in defended if a["outcome"] == "scored" and _is_evidence(a, controls)]
    if not scored:
        return []
    worst = worst_first(scored)[0]
    words = {
        "rebuilt": "does not stop it",
        "traces": "weakens it and still lets something through",
        "baseline": "brings it down to the level of another image",
        "unknown": "could not be judged, because there is no baseline",
    }
    return [f"On the same images this run's defense {words[level(worst)]} ({scores_in_words(worst)})."]


def _client_sentences(clients: Sequence[Line], controls: Sequence[Line]) -> list[str]:
    scored = [a for a in clients if a["outcome"] == "scored"]
    sentences = []
    if scored:
        worst = worst_first(scored)[0]
        beside = (
            f"; another image would score PSNR {decibels(value(worst, 'psnr', 'other'))}" if worst["scores"] else ""
        )
        sentences.append(f"{plural(len(scored), 'client audit')} scored; the worst: {scores_in_words(worst)}{beside}.")
    unproven = [a for a in scored if not _is_evidence(a, controls)]
    if unproven:
        sentences.append(f"{len(unproven)} of them rely on a control that failed or is missing, and prove nothing.")
    refused = sum(a["outcome"] == "no-consent" for a in clients)
    broken = sum(a["outcome"] in FAILED for a in clients)
    if refused:
        sentences.append(f"{plural(refused, 'audit')} ended without a score, because the client did not consent.")
    if broken:
        sentences.append(f"{plural(broken, 'audit')} failed: unknown, not safe.")
    return sentences


def _unproven_headline(controls: Sequence[Line]) -> str:
    if controls:
        return "The audit proves nothing: the attack failed on its own undefended control."
    return "The audit proves nothing: no undefended control was run."


def _without_clients(controls: Sequence[Line], defended: Sequence[Line]) -> tuple[Tone, str, str]:
    levels = [level(a) for a in defended if a["outcome"] == "scored" and _is_evidence(a, controls)]
    if not levels and all(control_state(c) != "rebuilt" for c in controls):
        return "unproven", "Proves nothing", _unproven_headline(controls)
    nobody = "No client's images were scored"
    if "rebuilt" in levels:
        return "leak", "Defense failed", f"{nobody}; on the control images this run's defense did not stop the attack."
    if "traces" in levels:
        return "traces", "Traces found", f"{nobody}; on the control images the defended update gives something away."
    if "baseline" in levels:
        return "unproven", "Clients unknown", f"{nobody}; on the control images the defended update gave nothing away."
    return "unproven", "Clients unknown", f"{nobody}: all that is known is that the attack works without a defense."


def _with_clients(clients: Sequence[Line], controls: Sequence[Line], defended: Sequence[Line]) -> tuple[Tone, str, str]:
    scored = [a for a in clients if a["outcome"] == "scored"]
    proven = [a for a in scored if _is_evidence(a, controls)]
    if any(level(a) == "rebuilt" for a in scored):  # a picture that is there needs no control
        return "leak", "Leak found", "Yes: a curious server could rebuild images of an audited client."
    if not proven:
        return "unproven", "Proves nothing", _unproven_headline(controls)
    levels = [level(a) for a in proven]
    if "traces" in levels:
        text = "In part: some of what the server rebuilt is nearer to a client's images than another image is."
        return "traces", "Traces found", text
    if "unknown" in levels:
        return "unproven", "Not judged", "The audit cannot be judged: scores came without their baselines."
    if any(level(a) == "rebuilt" for a in defended):
        return "traces", "Defense weak", "Not the audited clients, but the defended control was rebuilt."
    if any(a["outcome"] in FAILED for a in (*clients, *defended)):
        return "unproven", "Not judged", "Some audits failed, so it is unknown what a curious server could rebuild."
    if not any(a["outcome"] == "scored" and _is_evidence(a, controls) for a in defended):
        text = "This attack rebuilt nothing, but no defense was audited: a stronger attack may rebuild the images."
        return "unproven", "Not defended", text
    text = "Not with this attack: what it rebuilt is no nearer to the clients' images than another image is."
    return "clear", "Nothing rebuilt", text


def verdict(audits: Sequence[Line]) -> RunVerdict:
    """The headline and its reasons. No audit, no answer; no all-clear without a control, without a defense that was
    audited on it, or beside an audit that failed."""
    if not audits:
        text = "Nothing was audited, so nothing is known about what a curious server could rebuild."
        return RunVerdict("silent", "Not audited", text, ())
    controls = [a for a in audits if a["kind"] == "control"]
    defended = [a for a in audits if a["kind"] == "control-defended"]
    clients = [a for a in audits if a["kind"] == "client"]
    if any(a["outcome"] == "scored" for a in clients):
        tone, badge, headline = _with_clients(clients, controls, defended)
    else:
        tone, badge, headline = _without_clients(controls, defended)
    sentences = [
        *_client_sentences(clients, controls), _control_sentence(controls), *_defended_sentence(defended, controls)
    ]  # fmt: skip
    if tone in ("clear", "traces"):
        sentences.append("A stronger attack, or one that knows more, may rebuild more than this one did.")
    return RunVerdict(tone, badge, headline, tuple(sentences))
