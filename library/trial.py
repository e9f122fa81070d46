"""A trial is one attack on one view whose truth may be known, with the line that a run would keep of it.

The lines are those of ``audits.jsonl``, so that ``server.report.verdict`` judges trials made by hand as it judges a
run: a client's update, beside public images that were sent in the same way (``server.audit.canary``).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from prunella.attacks import find_attack
from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.engine.shadow import Shadow
from prunella.attacks.score.leakage import Leakage, paired, score
from prunella.attacks.score.level import level
from prunella.core.config import Raw
from prunella.core.errors import AttackError, ConfigError, DefenseError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, ServerView
from prunella.library import pictures
from prunella.server.audit.attempt import Attempt, Fit, Order, attempt, canary_outcome, evidence
from prunella.server.audit.canary import DEFENDED, play_canary
from prunella.server.audit.shadow import RunShadow, Sent, SentRound, is_single, template_of
from prunella.server.audit.view import standing, unread
from prunella.server.report.audit_table import result_of
from prunella.server.report.evidence import judged, scores_in_words, who
from prunella.server.report.state import RunState
from prunella.server.report.verdict import RunVerdict, verdict
from prunella.server.store.schema import StoreLine, check_audit
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task

CUT = "stopped before its end"


@dataclass(frozen=True)
class Attacker:
    """An attack with its settings. ``store`` makes the keeper of its progress, given what is attacked; ``shadow`` plays
    the attacked client on public images, where it is known how."""

    name: str
    settings: Any
    seed: int = 0
    store: Callable[[str], ResumeStore] = lambda what: ResumeStore()
    more: Mapping[str, Any] = field(default_factory=dict)


def judging(name: str) -> str:
    """``name``, if images it does not find say something. Raises ``ConfigError``."""
    if find_attack(name).gives == "labels" or find_attack(name).needs:
        raise ConfigError(f"attack {name!r} does not rebuild images from a view alone: it cannot judge an update")
    return name


@dataclass(frozen=True)
class Trial:
    """A checked audit ``line``, and the pairs [N, C, H, W] that were scored, where the truth is known."""

    line: StoreLine
    original: Tensor | None = None
    rebuilt: Tensor | None = None

    @property
    def title(self) -> str:
        return f"{who(self.line)}, {self.line['attack']} against {self.line['defense']}"

    def words(self, lines: Sequence[StoreLine]) -> str:
        """What came of it, among the ``lines`` of all trials."""
        if self.line["outcome"] == "no-consent":
            return "rebuilt, but not scored: its images are not known here"
        found = result_of(self.line, lines)[1]
        scores = f" ({scores_in_words(self.line, judged(self.line, lines))})" if self.line["scores"] else ""
        return f"{found}{scores}{': ' if self.line['reason'] else ''}{self.line['reason'] or ''}"

    def picture(self) -> Tensor | None:
        """Originals above what was made of them, or only the latter; None where nothing was rebuilt."""
        if self.rebuilt is None:
            return None
        return pictures.sheet(self.rebuilt) if self.original is None else pictures.pairs(self.original, self.rebuilt)

    def save(self, folder: Path, title: str) -> Path | None:
        shown = self.picture()
        name = "-".join(part for part in (title, self.line["attack"], self.line["kind"]) if part)
        return None if shown is None else pictures.write(shown, folder / f"{name}.png")


def attacked(
    kind: str,
    view: ServerView,
    truth: PrivateBatch | None,
    task: Task,
    attacker: Attacker,
    *,
    round: int = 0,
    gallery: Examples | None = None,
    shadow: Callable[[], Shadow | None] = lambda: None,
) -> Trial:
    """Attack ``view`` and score the answer. What keeps the attack from running is a failed trial, not an error."""
    defense, begun = ",".join(view.defenses) or "none", time.perf_counter()
    order = Order(attacker.name, attacker.settings, stream(attacker.seed, purpose="replay"), attacker.more)
    try:
        found = attempt(view, task, order, attacker.store(f"{kind}, {attacker.name}"), shadow)
    except (AttackError, DefenseError) as error:
        return failed(kind, attacker.name, defense, str(error), round=round)
    except (RuntimeError, LookupError) as error:  # a model that the attack cannot take apart
        why = f"{type(error).__name__}: {error}"
        return failed(kind, attacker.name, defense, why, round=round)
    line = _line(kind, attacker.name, defense, view.describe(), round)
    line |= {"objective": found.rebuilt.fit, "seconds": time.perf_counter() - begun}
    doubt = standing(unread(view, task), found.explained, found.rebuilt.found_by)
    line |= {"found_by": found.rebuilt.found_by, "reason": CUT if found.cut else doubt or None}
    if truth is None:
        return Trial(check_audit(line | {"outcome": "no-consent"}), None, found.rebuilt.x)
    return _scored(line, found, truth, gallery)


def _scored(line: StoreLine, found: Attempt, truth: PrivateBatch, gallery: Examples | None) -> Trial:
    leakage = score(found.rebuilt, truth, gallery=gallery)
    line = scored_line(line, leakage, Fit(found.explained, line["objective"]))
    return Trial(check_audit(line), *paired(truth.x, found.rebuilt.x, leakage.assignment))


def scored_line(line: StoreLine, leakage: Leakage, fit: Fit) -> StoreLine:
    """The line of an audit that was scored: with what its scores are worth as evidence."""
    scores = leakage.to_dict()
    if line["kind"] == "client":
        outcome = "scored"
        ok, why = evidence(line["defense"], fit, level({"scores": scores}), line["reason"])
    else:
        outcome, ok, why = canary_outcome(line["kind"], line["defense"], scores, fit, line["reason"])
    return {**line, "outcome": outcome, "ok": ok, "scores": scores, "reason": why or line["reason"]}


def _line(kind: str, attack: str, defense: str, knows: str, round: int) -> StoreLine:
    entry = find_attack(attack)
    threat = f"{entry.threat}. {knows}" if knows else entry.threat
    named = {"round": round, "kind": kind, "attack": attack, "defense": defense}
    return {**named, "adaptive": entry.adaptive, "threat": threat, "seconds": 0.0}


def failed(kind: str, attack: str, defense: str, reason: str, *, round: int = 0) -> Trial:
    """A trial of which nothing is known, for ``reason``."""
    return Trial(check_audit(_line(kind, attack, defense, "", round) | {"outcome": "failed", "reason": reason}))


@dataclass(frozen=True)
class Stage:
    """The client whose updates are attacked, to be played with any images: its model, how it trains (``like``, of which
    the update does not count), its ``defenses`` and their settings ``raw``, canaries, and public images to learn from.
    """

    task: Task
    like: ServerView
    defenses: tuple[str, ...]
    raw: Raw
    canaries: Examples
    public: Examples
    sent: SentRound = SentRound(0)

    @property
    def defended(self) -> bool:
        return self.defenses not in ((), ("none",))

    @property
    def alone(self) -> bool:
        """Whether the client itself had one image in one step, and what a defense learns or remembers had seen no
        round: a server may ask before it has."""
        fresh = not self.defended or self.sent.earlier == 0
        return fresh and (self.like.num_examples, self.like.steps) == (1, 1)

    def shadow(self, defenses: tuple[str, ...], whose: str) -> RunShadow:
        """The client under ``defenses``, with the draws of ``whose``."""
        round = replace(self.sent, whose=whose)
        return RunShadow(self.raw, self.task, template_of(self.like, defenses), round, self.public)

    def canary(self, kind: str) -> Sent:
        """The update of public images of ``kind``. Raises ``AttackError``, ``DefenseError``."""
        defenses = self.defenses if kind in DEFENDED else ("none",)
        return play_canary(self.shadow(defenses, "canary"), self.canaries, kind)

    def attack_canary(self, kind: str, attacker: Attacker) -> Trial:
        """The attack on the canary of ``kind``; a defense that withholds it makes a failed trial."""
        try:
            sent = self.canary(kind)
        except (AttackError, DefenseError) as error:
            defense = ",".join(self.defenses if kind in DEFENDED else ("none",))
            return failed(kind, attacker.name, defense, str(error), round=self.sent.number)
        return self.attack(kind, sent, attacker, self.public)

    def attack(self, kind: str, sent: Sent, attacker: Attacker, gallery: Examples | None) -> Trial:
        """The attack on an update that the client sent."""
        defenses = sent.view.defenses or ("none",)

        def shadow() -> RunShadow:
            played = self.shadow(defenses, "shadow")
            return played.first() if is_single(kind) else played

        rehearsed = {"round": self.sent.number, "gallery": gallery, "shadow": shadow}
        return attacked(kind, sent.view, sent.truth, self.task, attacker, **rehearsed)  # type: ignore[arg-type]


def as_single(trial: Trial) -> Trial:
    """The control of a client that itself has one image and one step is the worst case, too."""
    line = {**trial.line, "kind": trial.line["kind"].replace("control", "single")}
    if line["outcome"] == "failed":
        return replace(trial, line=line)
    cut = line["reason"] if line["outcome"] == "scored" else None  # else it is why no control was rebuilt
    return replace(trial, line={**line, "outcome": "scored", "ok": None, "reason": cut})


def judge_trials(trials: Sequence[Trial], state: RunState, alone: bool = False) -> RunVerdict:
    """What the trials show together, by the rule and in the words of a run's report. Of a client that was ``alone``
    (``Stage.alone``) the controls are the worst case, where no other was tried."""
    if alone and not any(trial.line["kind"].startswith("single") for trial in trials):
        trials = [*trials, *(as_single(trial) for trial in trials if trial.line["kind"].startswith("control"))]
    order = ("control", "control-defended", "single", "single-defended", "client")
    return verdict(sorted((t.line for t in trials), key=lambda line: order.index(line["kind"])), state)
