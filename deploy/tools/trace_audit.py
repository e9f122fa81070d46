"""``prunella audit``: the attack on a trace, the controls that go with it, and one verdict on all of it.

The controls are those of a run (``server.audit.canary``): public images that are trained on as the trace says, from the
weights it holds, without a defense and, where the trace lies in the directory of a run, behind that run's. The images
are the run's, those of a dataset that the user names, or scikit-learn's digits, resized. The verdict is that of
``server.report.verdict``; outside a run it is not known whether the model learned unless the dataset is of its kind.

Ctrl-C or SIGTERM ends the attack with the best it has, and the verdict is on what was found so far; a second one ends
at once.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from prunella.attacks import PROBES, find_attack
from prunella.attacks.engine.attackable import require_images
from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.score.control import made_by, normalised_by
from prunella.attacks.score.level import FOUND, its_own, level
from prunella.attacks.trace import load_trace
from prunella.core.folders import unwritable
from prunella.core.foreign import is_foreign
from prunella.core.interrupts import ending, take
from prunella.core.types import ServerView
from prunella.core.untrusted import MAX_COUNT, clean
from prunella.deploy.errors import UsageError
from prunella.deploy.tools.audit_inputs import attack_keywords
from prunella.deploy.tools.replay import (
    Replay,
    Sources,
    find_trace,
    import_from_current_directory,
    read_truth,
    replay,
    settings_of,
)
from prunella.library.audit import learned
from prunella.library.pace import Tell, estimate
from prunella.library.trial import CUT, Attacker, Stage, Trial, judge_trials, scored_line
from prunella.server.audit.attempt import Fit
from prunella.server.audit.canary import load_pool, shortage
from prunella.server.audit.job import PUBLIC
from prunella.server.audit.shadow import SentRound, read_public, round_of
from prunella.server.audit.view import standing, unread
from prunella.server.report.evidence import KINDS, NORMALISED, UNTRUE, in_words, untrue
from prunella.server.report.state import RunState, run_state
from prunella.server.report.units import duration, plural
from prunella.server.report.verdict import RunVerdict
from prunella.server.store.read import read_metrics, read_run
from prunella.server.store.schema import RUN, check_audit
from prunella.tasks.data import load_test
from prunella.tasks.datasets.digits import everything
from prunella.tasks.examples import Examples
from prunella.tasks.normalisation import formula
from prunella.tasks.task import Task

IMAGES = KINDS.keys() - {"membership"}
Say = Callable[[str], object]
LEARNED = ("accuracy_ratio", "loss")  # what says that a model learned, by then: later rounds say nothing of a trace
UNTRIED = (
    "The trace names a defense ({}), but not its settings, which lie in the directory of its run: public images were "
    "sent without it, and nothing here says what it hides."
)
UNCHECKED = (
    "Behind a defense nothing here can tell whether the images named as the truth made the update: that nothing was "
    "found of them is worth no more than this file is."
)
Teller = Callable[[str, int], Tell]


@dataclass
class Stop:
    """What Ctrl-C does: the attacks under way end with what they have."""

    asked: bool = False
    stores: list[ResumeStore] = field(default_factory=list)
    early: bool = True  # whether the attack can end early; one that cannot is interrupted

    def store(self, folder: Path | None = None) -> ResumeStore:
        made = ResumeStore(folder, deadline=time.monotonic() if self.asked else None)
        self.stores.append(made)
        return made

    def ask(self, *_: object) -> None:
        """Handle a signal: another one ends it at once."""
        if self.asked or not self.early:
            self.asked = True
            raise KeyboardInterrupt
        self.asked = True
        for each in self.stores:
            each.deadline = time.monotonic()

    @contextmanager
    def listening(self) -> Iterator[None]:
        def end(number: int, _: object) -> None:
            take(number)
            self.ask()

        before = {number: signal.signal(number, end) for number in ending()}
        before[signal.SIGINT] = signal.signal(signal.SIGINT, self.ask)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def must_rebuild(name: str, asked: bool) -> None:
    """Raise ``UsageError`` where a control or a worst case is ``asked`` of an attack that infers labels or membership:
    its flat images would be scored, and every control would fail."""
    if asked and (name in PROBES or find_attack(name).gives != "images"):
        raise UsageError(f"{name} rebuilds no image: leave out --control, --worst-case and --public")


@dataclass(frozen=True)
class TraceAudit:
    """An audit of ``sources.trace`` with the attack ``name``; ``given`` are its settings as typed, ``public`` names the
    dataset of the controls."""

    sources: Sources
    name: str
    given: tuple[str, ...] = ()
    seed: int = 0
    public: str = ""
    stop: Stop = field(default_factory=Stop)

    @cached_property
    def settings(self) -> Any:
        return settings_of(self.name, self.given)

    @cached_property
    def seen(self) -> tuple[ServerView, Task, dict[str, Any]]:
        """The view, its task, and what else its trace says."""
        view, task, _ = self.sources.views()
        return view, task, load_trace(find_trace(self.sources.trace)[0], task)[2]

    @property
    def round(self) -> int:
        """The trace is not trusted: anything but a count is 0, no round."""
        said = self.seen[2].get("round")
        return said if type(said) is int and 0 <= said <= MAX_COUNT else 0

    @cached_property
    def run(self) -> Path | None:
        """The directory of the run that recorded the trace, if it lies there."""
        folder = find_trace(self.sources.trace)[0].absolute().parent.parent
        return folder.parent if (folder / PUBLIC).is_file() and "round" in self.seen[2] else None

    @cached_property
    def named(self) -> Examples | None:
        """The public images that the user names."""
        return load_test(self.public, None) if self.public else None

    @cached_property
    def stage(self) -> Stage:
        """The client of the trace, to be played on public images."""
        view, task, about = self.seen
        raw: dict[str, Any] = {"strategy": "fedavg", "seed": self.seed}
        pool, sent = None, SentRound(self.round)
        if self.run is not None:
            public, canaries, kept = read_public(self.run / "traces" / PUBLIC)
            raw, pool = dict(kept), (canaries, public)
            sent = round_of(find_trace(self.sources.trace)[0].parent, about, "canary")
        if self.named is not None or pool is None:
            pool = load_pool(task, self.named or everything(), self.seed, view.images_used or 1)
        known = self.run is not None and not any(is_foreign(each) for each in view.defenses)
        return Stage(task, view, view.defenses if known else ("none",), raw, *pool, sent)

    @property
    def untried(self) -> str:
        """Defenses that the trace names and that public images cannot be sent behind: their settings are the run's."""
        named = [each for each in self.seen[0].defenses if each != "none"]
        return "" if self.stage.defended else ", ".join(named)

    def unchecked(self, trials: list[Trial]) -> str:
        """That the user's truth may be another's, where nothing was found of it and no check is possible."""
        lines = [trial.line for trial in trials if trial.line["kind"] == "client" and trial.line["outcome"] == "scored"]
        named = self.sources.truth is not None and not set(self.seen[0].defenses) <= {"none"}
        return UNCHECKED if named and any(level(line) not in FOUND for line in lines) else ""

    @property
    def whose(self) -> str:
        if self.public:
            return f"test images of {self.public}"
        return "public images of the run" if self.run is not None else "scikit-learn's digits, resized"

    def kinds(self, control: bool, worst_case: bool) -> list[str]:
        """The canaries to attack, controls first."""
        wanted = ["control"] * control + ["single"] * worst_case
        return [kind for each in wanted for kind in (each, f"{each}-defended")[: 1 + self.stage.defended]]

    def check(self, control: bool, worst_case: bool) -> None:
        """Raise what keeps the attack or its control from running, before anything is said of how long it takes."""
        must_rebuild(self.name, control or worst_case or bool(self.public))
        for folder, option in ((self.sources.out, "--out"), (self.sources.keep, "--keep")):
            if folder is not None and (reason := unwritable(folder)):
                raise UsageError(f"cannot write to {folder} ({reason}): choose another with {option}")
        view, task, earlier = self.sources.views()
        require_images(view, task)
        entry, (file, _) = find_attack(self.name), find_trace(self.sources.trace)
        attack_keywords(self.name, self.sources.known, earlier, ResumeStore(self.sources.keep))
        read_truth(self.sources.truth, file, task)
        if entry.ready is not None:
            entry.ready(self.settings, task)
        sites = self.stage.sent.sites if control else 1
        if control and (few := shortage(self.stage.canaries, view.images_used or sites, sites)):
            raise UsageError(f"{few}: name a larger dataset with --public, or leave --control out (--worst-case needs "
                             "one image)")  # fmt: skip
        if worst_case or not entry.learns or self.sources.known is not None:
            return
        if self.sources.shadow(view, task) is None:
            file_of_it = " or --known FILE" if entry.takes("known") else ""
            raise UsageError(f"{self.name} learns from shadows of the client, which the directory of its run has: name "
                             f"a trace there{file_of_it}; --worst-case needs none")  # fmt: skip

    def estimates(self, control: bool, worst_case: bool) -> Iterator[str]:
        """What will be attacked, and about how long it takes at most."""
        view, task, _ = self.seen
        steps, size = view.steps or 1, view.batch_size or view.num_examples or 1
        kinds = self.kinds(control, worst_case)
        alone = steps * size == 1
        whole = None if worst_case and not control else estimate(view, task, self.name, self.settings)
        attacks = (not worst_case) + sum(not kind.startswith("single") for kind in kinds)
        if attacks:
            each = "" if attacks == 1 else f", {attacks} attacks"
            about = "" if whole is None else f": at most about {duration(whole * attacks)}"
            used = view.images_used or steps * size  # the last step may have fewer
            of_images = f"× {plural(size, 'image')}" if used == steps * size else f"of {plural(used, 'image')}"
            yield f"{plural(steps, 'step')} {of_images}{each}{about}"
        if not worst_case and (alone or self.name == "portfolio" or find_attack(self.name).gives != "images"):
            return
        single = estimate(self.stage.canary("single").view, task, self.name, self.settings)
        about = (
            ""
            if single is None
            else f", at most about {duration(single)}{' each' if worst_case and self.stage.defended else ''}"
        )
        unused = ", in place of the trace: --truth is not used" if worst_case and self.sources.truth else ""
        yield f"{'worst case' if worst_case else '--worst-case'}: one step of one image{about}{unused}"

    def attack_trace(self, tell: Teller) -> tuple[Replay, Trial]:
        """The attack on the trace itself, and the trial that it is for the verdict."""
        paced = tell("", getattr(self.settings, "iterations", 0))
        found = replay(
            self.sources, self.name, self.given, self.seed, lambda a, b, c, _: paced(a, b, c), self.stop.store
        )
        trial = self._trial(found)
        return replace(found, untrue=bool(untrue(trial.line))), trial

    def _trial(self, found: Replay) -> Trial:
        view, task, about = self.seen
        own = self.run is not None and self.sources.truth is None  # else the trace would say whose images they are
        kind = about.get("kind") if own and about.get("kind") in IMAGES else "client"
        attempt = found.attempt
        explained = None if attempt is None else attempt.explained
        line: dict[str, Any] = {"round": self.round, "kind": kind, "attack": self.name}
        line["sites"] = self.stage.sent.sites if self.stage.sent.sites > 1 else None
        line |= {"defense": ",".join(view.defenses) or "none", "adaptive": found.adaptive, "threat": found.threat}
        line |= {"objective": found.answer.fit, "seconds": found.seconds, "found_by": found.answer.found_by}
        doubt = clean(str(about.get("doubt") or "")) or unread(view, task)
        doubt = standing(doubt, explained, found.answer.found_by)
        line["reason"] = CUT if attempt is not None and attempt.cut else doubt or None
        fit = Fit(explained, found.answer.fit)
        line = line | {"outcome": "no-consent"} if found.leakage is None else scored_line(line, found.leakage, fit)
        if found.leakage is not None and not its_own(line) and (why := self._untrue(explained)):
            # Where the update is explained its images are known, and the truth's are likely to be like some of them.
            counts = explained is not True and level(line) in FOUND
            line |= {"ok": False, "reason": why} | ({} if counts else {"scores": None, "level": "unknown"})
        return Trial(check_audit(line), None, found.answer.x)

    def _untrue(self, explained: bool | None) -> str:
        """Why what was found is compared with other images, where what is named as the truth did not make the update;
        else empty."""
        view, task, _ = self.seen
        truth = read_truth(self.sources.truth, find_trace(self.sources.trace)[0], task)
        if truth is None or self.stage.sent.sites > 1:
            return ""
        if (normal := normalised_by(task, view, truth)) is not None:
            # What explains it is then the same images, as they were before.
            return "" if explained else f"{NORMALISED}{formula(normal)} (docs/audit-your-app.md)"
        made = made_by(task, view, truth)
        alone = set(view.defenses) <= {"none"} and explained is True
        return UNTRUE if made is False or (made is None and alone) else ""

    def attack_canaries(self, kinds: list[str], tell: Teller) -> Iterator[tuple[Trial, Path | None]]:
        """The attacks on public images, each with the picture of its pairs, until Ctrl-C."""
        _, title = find_trace(self.sources.trace)

        def store(what: str) -> ResumeStore:
            made = self.stop.store()
            made.tell = tell(what, getattr(self.settings, "iterations", 0))
            return made

        attacker = Attacker(self.name, self.settings, self.seed, store)
        for kind in kinds:
            if self.stop.asked:
                return
            trial = self.stage.attack_canary(kind, attacker)
            yield trial, trial.save(self.sources.out, title)

    def state(self) -> RunState:
        """What is known of the model: from the run's own files, up to the round of the trace, or, outside a run, from
        the public images named."""
        view, task, _ = self.seen
        if self.run is not None and (self.run / RUN).is_file():
            lines = read_metrics(self.run)
            lines = [line for line in lines if line["metric"] not in LEARNED or line["round"] <= self.round]
            known = run_state(read_run(self.run), lines)
            return replace(known, rounds=1, unaudited="", lost=0)  # of other rounds and audits this one says nothing
        return replace(learned(task, view, None, self.named), defended=view.defenses not in ((), ("none",)))

    def verdict(self, trials: list[Trial]) -> RunVerdict:
        return judge_trials(trials, self.state(), self.stage.alone)


def conclusion(answer: RunVerdict, whose: str, untried: str = "", unchecked: str = "") -> list[str]:
    """The verdict as the lines that close an audit; ``untried``: its defenses that no image was sent behind;
    ``unchecked``: a note on its truth."""
    worst = [] if answer.worst is None else [f"worst      {in_words(answer.worst, answer.worst_level)}"]
    notes = [f"note       {note}" for note in answer.notes]
    return [
        f"verdict    {answer.badge}. {answer.headline}",
        *worst,
        *notes,
        *([f"note       {UNTRIED.format(untried)}"] if untried else []),
        *([f"note       {unchecked}"] if unchecked else []),
        *([f"controls   {whose}"] if whose else []),
    ]


def run_audit(audit: TraceAudit, control: bool, worst_case: bool, tell: Teller, say: Say) -> bool:
    """The whole audit, told line by line as it is found. False where Ctrl-C cut it short."""
    import_from_current_directory()
    audit.check(control, worst_case)
    entry, kinds, trials = find_attack(audit.name), audit.kinds(control, worst_case), list[Trial]()
    audit.stop.early = entry.takes("resume") or entry.takes("stopped")
    try:
        with audit.stop.listening():
            for line in audit.estimates(control, worst_case):
                say(f"estimate   {line}")
            if not worst_case:
                found, trial = audit.attack_trace(tell)
                trials.append(trial)
                for line in found.lines():
                    say(line)
            for trial, picture in audit.attack_canaries(kinds, tell):
                trials.append(trial)
                say(f"{trial.line['kind']:<10} {trial.words([t.line for t in trials])}")
                if picture is not None:
                    say(f"pictures   {picture}")
    except KeyboardInterrupt:
        audit.stop.asked = True
        if not trials:
            raise
    if entry.gives == "images":
        whose, untried = (audit.whose, audit.untried) if kinds else ("", "")
        for line in conclusion(audit.verdict(trials), whose, untried, audit.unchecked(trials)):
            say(line)
    return not audit.stop.asked
