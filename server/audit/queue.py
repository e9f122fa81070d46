"""The audit queue: which views are attacked, and what becomes of the reconstructions. It never holds up training.

In the first round, every ``audit-every`` rounds and after the last one, the server files jobs, in this order: the
control that matches the round's first audited client (``canary``), the views of up to ``audit-clients`` consenting
clients as received (under SparsyFed, as plain SGD would have sent them: ``shadow.attacked``), and the other canaries.
Of masked sums there is one view, that of the round's sum (``view.sum_view``), and all its clients score it. An audit
passes through these modules, in this order:

1. ``queue`` writes the view, or the pattern of a canary's, into a folder (``job``); ``process`` keeps the worker alive,
   or the one that hands jobs to a Ray cluster (``cluster``, ``address``, ``parcel``; ``remote`` over there);
2. ``worker`` makes a canary's view (``canary``, ``shadow``), runs the attack that ``attacks.ATTACKS`` names, built on
   ``attacks.engine``, and scores a canary itself (``attacks.score``), since the truth behind a canary is public;
3. ``queue`` sends a client's reconstruction to that client, which alone can score it, and ``answers`` checks the reply;
4. the outcome becomes a line of ``audits.jsonl``, and ``server.report.verdict`` says what the audits of a run show.

``advance``, called between rounds, takes in whatever is ready and waits for nothing. Only the run's end waits.
"""

import json
import math
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from logging import WARNING
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from prunella.attacks import Attack, find_attack
from prunella.attacks.score.leakage import paired
from prunella.attacks.score.level import ORDER, level
from prunella.attacks.trace import save_trace
from prunella.core.config import Raw, Run, parse_section
from prunella.core.errors import AttackError, ConfigError
from prunella.core.files import read_tree, write_json, write_tree
from prunella.core.trees import Mask, Tree, apply_mask
from prunella.core.types import ServerView
from prunella.core.untrusted import clean
from prunella.server.audit.address import cluster_address
from prunella.server.audit.answers import read_pictures, read_scores
from prunella.server.audit.attempt import canary_outcome, evidence, fit_of
from prunella.server.audit.canary import DEFENDED, UNDEFENDED
from prunella.server.audit.job import JOB, PATTERN, REBUILT, RESULT, TRUTH, VIEW, Job
from prunella.server.audit.process import MAX_STARTS, WorkerProcess
from prunella.server.audit.shadow import alike, attacked, template_of, write_public, write_sent
from prunella.server.audit.view import any_left, expected_view, moved_mask, sum_view, unequal, view_of
from prunella.strategies.round.replies import Contribution, Expected
from prunella.strategies.round.roster import Member, Roster
from prunella.strategies.secure_sum.collector import OpenedSum
from prunella.strategies.secure_sum.vector import NAME as SECURE_SUM
from prunella.strategies.secure_sum.vector import SecureSum
from prunella.tasks.data import Examples
from prunella.tasks.task import Task
from prunella.wire.records import to_dense

QUERY = "query.audit"
ANSWERING = 60.0  # seconds beyond its own limit that a job has for its view, its scores and its client's answer
# Flower's codes for what the SuperLink answers in a client's place (``strategies.round.replies.UNANSWERED``).
UNSCORED = dict.fromkeys((3, 4), "the client did not answer in time") | {5: "the client cannot be reached"}
REFUSED = "the client refused: not its round, asked as often as it will answer, or no images of its task, or too many"
LEFT_OUT = "the client's answer is left out"
SHOWN = "pictures"  # the consent of a client that lets its images be seen
SHOWN_TO_ALL = (
    "what is rebuilt of a sum may be any of its clients' images and goes to all of them: nobody is asked unless every "
    f"client in it consents with audit={SHOWN}"
)
OF_A_SUM = (
    "What was attacked is the sum of {} clients' updates. A server that invents clients, plants a model or subtracts "
    "sums of different rounds sees more"
)
Outcome = dict[str, Any]


class Subject(NamedTuple):
    """What is attacked: a view, the mask that its client was sent where it moved that, and of a sum the number of its
    clients, those that score it, and why finding nothing would prove nothing (``Job``)."""

    view: ServerView
    moved: Mask | None = None
    sites: int | None = None
    scored_by: tuple[int, ...] = ()
    doubt: str = ""


def ready_settings(name: str, raw: Raw, task: Task) -> dict[str, Any]:
    """The attack's own settings, for the worker. A file they name gets its full path: the worker runs elsewhere.

    Raises ``ConfigError`` if that file is missing or does not fit the task.
    """
    entry, settings = find_attack(name), {k: v for k, v in raw.items() if k.startswith(f"{name}.")}
    if entry.ready is None:
        return settings
    try:
        entry.ready(parse_section(raw, name, entry.settings), task)
    except AttackError as error:
        raise ConfigError(f"attack={name}: {error}") from None
    return settings | {f"{name}.prior": str(Path(str(settings[f"{name}.prior"])).absolute())}


def judging(run: Run) -> Attack:
    """The attack of a run. Raises ``ConfigError`` for one that cannot judge it."""
    attack = find_attack(run.attack)
    if attack.gives == "labels" or attack.needs:
        # Its images say nothing, or it cannot start: either way a verdict would call a leaking run safe.
        why = "does not rebuild images from a view alone: a run cannot be judged by it"
        raise ConfigError(f"attack={run.attack} {why}")
    return attack


class Auditor:
    """The audits of one run. ``finished`` collects their outcomes as lines for the run store."""

    def __init__(
        self, run: Run, raw: Raw, task: Task, pool: tuple[Examples, Examples], roster: Roster, folder: Path
    ) -> None:
        self.attack = judging(run)
        self.run, self.raw, self.task, self.pool, self.roster = run, raw, task, pool, roster
        self.settings = ready_settings(run.attack, raw, task)
        if run.audit_cluster and run.audit_every:
            cluster_address(run.audit_cluster)
        self.queue = folder / "traces"
        self.pictures = folder / "pictures"
        self.jobs: list[Job] = []
        self.asked: dict[str, Job] = {}
        self.finished: list[Outcome] = []
        self.worker = WorkerProcess(self.queue, run.audit_workers, run.audit_cluster)
        self.took: list[float] = []  # seconds of the attacks that are over
        self.since = time.monotonic()  # the last of them was over, or the first began
        self.telling = 0  # a round more to audit, in which squared gradients leave beside updates that tell less
        self._audited: dict[int, set[int]] = {}
        self._pattern: tuple[int, Subject] | None = None

    def prepare(self) -> None:
        """Write what all canaries need, and start the worker before there is work: its imports take seconds."""
        if self.run.audit_every:
            self.queue.mkdir(parents=True, exist_ok=True, mode=0o700)
            canaries, public = self.pool
            write_public(self.queue, public, canaries, self.raw)
            self._start_worker()

    def recover(self, round: int, answered: Iterable[Outcome]) -> int:
        """After a restart at ``round``: resume audits without an outcome, drop later rounds'. How many failed."""
        done = {(line["round"], line["kind"], line["client"]) for line in answered}
        for path in sorted(self.queue.glob(f"*/{JOB}")):
            job = Job.read(path)
            if job.round > round:
                shutil.rmtree(path.parent)
            elif job.clients:
                left = tuple(client for client in job.clients if (job.round, job.kind, client) not in done)
                self.jobs += [replace(job, clients=left)] if left else []
            elif (job.round, job.kind, job.client) not in done:
                self.jobs.append(job)
        ended = (job for job in self.jobs if (self.queue / job.folder / RESULT).exists())
        return sum(len(job.scored_by) for job in ended if self._result(job)["error"] is not None)

    def due(self, round: int) -> bool:
        return self.run.audits(round) or round == self.telling > 0

    # filing jobs -----------------------------------------------------------------------------------------------------
    def file_controls(self, expected: Expected, importance: frozenset[str] = frozenset()) -> None:
        """The round's canaries that are not filed yet, once its replies are in."""
        subject = self._matched(expected, Subject(expected_view(self.run, expected, importance)))
        for kind in ("control-defended", "single", "single-defended"):
            if kind in UNDEFENDED or self.run.defense_names != ("none",):
                self._file_canary(expected, kind, subject)

    def _matched(self, expected: Expected, subject: Subject) -> Subject:
        """What the round's canaries match: the first one given, whose control is filed at once."""
        if self._pattern is None or self._pattern[0] != expected.round:
            self._pattern = expected.round, subject
            self._file_canary(expected, "control", subject)
        return self._pattern[1]

    def file_client(self, expected: Expected, contribution: Contribution, member: Member | None, start: Tree) -> None:
        """A consenting client's view, while this round's quota lasts."""
        taken = self._audited.setdefault(expected.round, set())
        if member is None or member.consent == "deny" or len(taken) >= self.run.audit_clients:
            return
        taken.add(member.client)
        view = view_of(self.run, expected, contribution, start)
        update = attacked(self.run, self.raw, self.task.structure(), start, view.update)
        view = replace(view, update=apply_mask(update, contribution.shared))
        subject = Subject(view, moved_mask(expected, contribution.base))
        pattern = self._matched(expected, subject).view
        if not alike(pattern, view):  # other sizes or masks: the round's control says nothing about this view
            self._file_canary(expected, "control", subject, member.client)
        self._file(expected, "client", subject, member.client)

    def file_sum(self, expected: Expected, opened: OpenedSum, members: Iterable[Member]) -> None:
        """The sum of a round, which is attacked once and scored by all its clients. What is rebuilt may be of any of
        them and goes to all, so nobody is sent it unless each one lets its images be seen: else there are canaries, and
        audits that failed of those that do not deny them."""
        inside, counted = opened.clients, parse_section(self.raw, SECURE_SUM, SecureSum).examples
        view = sum_view(self.run, expected, opened, counted)
        subject = Subject(view, None, len(inside), inside, unequal(self.run, opened, counted))
        self._matched(expected, subject)
        consents = {member.client: member.consent for member in members if member.client in inside}
        if all(consents.get(client) == SHOWN for client in inside):  # not of one whose consent is not known
            self._file(expected, "client", subject)
            return
        some = tuple(client for client, consent in sorted(consents.items()) if consent != "deny")
        job = Job(
            expected.round, "client", None, self.attack.threat, ",".join(self.run.defense_names), len(inside), some
        )
        for one in job.scored_by if some else ():
            self._finish(one, {"objective": None, "seconds": 0.0}, "failed", reason=SHOWN_TO_ALL)

    def miss(self, round: int, asked: Mapping[int, Member], silent: Mapping[int, str]) -> None:
        """Count the consenting clients that were ``asked`` and whose update did not come, while the round's quota
        lasts: their audits failed. ``silent`` says why, by node, as far as Flower does."""
        taken, threat = self._audited.setdefault(round, set()), self.attack.threat
        for node, member in sorted(asked.items()):
            if member.consent == "deny" or member.client in taken or len(taken) >= self.run.audit_clients:
                continue
            taken.add(member.client)
            job = Job(round, "client", member.client, threat, ",".join(self.run.defense_names))
            why = f"no update came from this client: {silent.get(node, 'its reply was lost or left out')}"
            self._finish(job, {"objective": None, "seconds": 0.0}, "failed", reason=why)

    def _file_canary(self, expected: Expected, kind: str, subject: Subject, client: int | None = None) -> None:
        defenses = self.run.defense_names if kind in DEFENDED else ("none",)
        view = template_of(subject.view, defenses)
        self._file(expected, kind, Subject(view, subject.moved, subject.sites), client)

    def _file(self, expected: Expected, kind: str, subject: Subject, client: int | None = None) -> None:
        view, moved, sites, scored_by, doubt = subject
        threat = f"{self.attack.threat}. {view.describe()}" + (f". {OF_A_SUM.format(sites)}" if sites else "")
        defense = ",".join(view.defenses) or "none"
        job = Job(expected.round, kind, client, threat, defense, sites, scored_by, doubt, any_left(view.importance))
        folder = self.queue / job.folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = {"round": expected.round, "kind": kind, "doubt": doubt} | ({"sites": sites} if sites else {})
        save_trace(folder / (VIEW if kind == "client" else PATTERN), view, self.task, about)
        write_sent(folder, moved, expected.locations)
        order = {"attack": self.run.attack, "settings": self.settings, "seed": self.run.seed + expected.round}
        limits = {"device": self.run.attack_device, "seconds": self.run.audit_seconds}
        write_json(folder / JOB, {**order, **limits, "job": asdict(job)})
        self.since = self.since if self.jobs else time.monotonic()
        self.jobs.append(job)
        self._start_worker()

    def _start_worker(self) -> None:
        if not self.worker.ensure():
            log(WARNING, "the audit worker ended %d times: its audits are given up", MAX_STARTS)
            self.give_up(f"the audit worker ended {MAX_STARTS} times without an answer")

    # taking in answers -----------------------------------------------------------------------------------------------
    def advance(self, grid: Grid) -> None:
        """Take in what is ready; wait for nothing."""
        for job in [job for job in self.jobs if (self.queue / job.folder / RESULT).exists()]:
            self.jobs.remove(job)
            self.worker.answered()
            self._answered(job, self._result(job), grid)
        if self.asked:
            for reply in grid.pull_messages(list(self.asked)):
                job = self.asked.pop(reply.metadata.reply_to_message_id)
                self._scored(job, reply)
        if self.jobs:
            self._start_worker()

    @property
    def pending(self) -> int:
        return len(self.jobs) + len(self.asked)

    def at_most(self) -> float:
        """Seconds that the audits under way may still take, clients' answers and the worker's own pace included."""
        return ANSWERING + self.run.audit_seconds * math.ceil(self.pending / self.run.audit_workers)

    def estimate(self) -> float | None:
        """Seconds that the audits under way will take if they are as long as those before; None before the first, and
        once the present one takes longer than that."""
        if not self.took:
            return None
        each, elapsed = sum(self.took) / len(self.took), time.monotonic() - self.since if self.jobs else 0.0
        return None if elapsed > each else each * math.ceil(len(self.jobs) / self.run.audit_workers) - elapsed

    def _result(self, job: Job) -> Outcome:
        found: Outcome = json.loads((self.queue / job.folder / RESULT).read_text())
        return found

    def _answered(self, job: Job, result: Outcome, grid: Grid) -> None:
        self.took.append(result["seconds"])
        self.since = time.monotonic()
        if result["error"] is not None:
            log(WARNING, "audit %s failed: %s", job.name, clean(result["error"]))
            for one in job.scored_by:
                self._finish(one, result, "failed", reason=result["reason"])
        elif job.kind != "client":
            self._canary_scored(job, result)
        elif job.sites and self._taken_back(job):
            for one in job.scored_by:
                self._finish(one, result, "failed", reason=SHOWN_TO_ALL)
        else:
            for one in job.scored_by:
                self._ask(one, grid)

    def _taken_back(self, job: Job) -> bool:
        """Whether a client of this sum consents to less than when the sum was filed; one that is away does not."""
        inside = Job.read(self.queue / job.folder / JOB).clients
        return any(member.consent != SHOWN for member in map(self.roster.find, inside) if member is not None)

    def _canary_scored(self, job: Job, result: Outcome) -> None:
        rebuilt, truth = (read_tree(self.queue / job.folder / file)[0] for file in (REBUILT, TRUTH))
        picture = self._keep_pictures(job, *paired(truth["x"], rebuilt["x"], result["assignment"]))
        outcome, ok, reason = canary_outcome(job.kind, job.defense, result["scores"], fit_of(result), result["reason"])
        self._finish(job, result, outcome, result["scores"], picture, ok, reason)

    def _ask(self, job: Job, grid: Grid) -> None:
        """Send the reconstruction to the client whose update was attacked; it alone can tell how good it is."""
        member = self.roster.find(job.client)
        ids: list[str] = []
        if member is not None:
            rebuilt, _ = read_tree(self.queue / job.folder / REBUILT)
            content = RecordDict({"reconstruction": to_dense(rebuilt), "audit": ConfigRecord({"round": job.round})})
            message = Message(content, dst_node_id=member.node, message_type=QUERY)
            ids = [message_id for message_id in grid.push_messages([message]) if message_id is not None]
        self.asked |= dict.fromkeys(ids, job)
        if not ids:
            log(WARNING, "audit %s: its client cannot be reached", job.name)
            self._finish(job, self._result(job), "failed", reason="the client cannot be reached")

    def _scored(self, job: Job, reply: Message) -> None:
        result = self._result(job)
        if reply.has_error():
            reason = (
                UNSCORED.get(reply.error.code) or f"the client could not score it: {reply.error.reason or 'no reason'}"
            )
            log(WARNING, "audit %s failed: %s", job.name, clean(reason))
            return self._finish(job, result, "failed", reason=reason)
        outcome = reply.content.config_records.get("audit", ConfigRecord()).get("outcome")
        numbers = reply.content.metric_records.get("scores")
        reported = reply.content.config_records.get("audit", ConfigRecord()).get("level")
        if outcome == "no-consent":
            return self._finish(job, result, outcome)
        if outcome != "scored" or reported not in ORDER:
            return self._finish(job, result, "failed", reason=REFUSED if outcome == "refused" else LEFT_OUT)
        try:
            scores = None if numbers is None else read_scores(numbers)
            pictures = read_pictures(reply.content.array_records.get("pictures"), self.task.shape)
        except AttackError as error:
            log(WARNING, "audit %s: the client's answer is left out: %s", job.name, error)
            return self._finish(job, result, "failed", reason=f"{LEFT_OUT}: {error}")
        kept = self._keep_pictures(job, *pictures) if pictures else None
        shown = level({"level": reported, "scores": scores})  # what the verdict goes by, whatever the word is
        ok, why = evidence(job.defense, fit_of(result), shown, result["reason"])
        self._finish(job, {**result, "level": reported}, "scored", scores, kept, ok, why)

    def _keep_pictures(self, job: Job, original: Any, rebuilt: Any) -> str:
        write_tree(path := self.pictures / f"{job.name}.safetensors", {"original": original, "reconstruction": rebuilt})
        return f"{self.pictures.name}/{path.name}"

    def _finish(
        self,
        job: Job,
        result: Outcome,
        outcome: str,
        scores: Any = None,
        pictures: str | None = None,
        ok: bool | None = None,
        reason: str | None = None,
    ) -> None:
        reason = reason or result.get("reason")
        self.finished.append(
            {
                "round": job.round,
                "kind": job.kind,
                "client": job.client,
                "sites": job.sites,
                "attack": self.run.attack,
                "defense": job.defense,
                "adaptive": self.attack.adaptive,
                "threat": job.threat,
                "objective": result["objective"],
                "seconds": result["seconds"],
                "outcome": outcome,
                "scores": scores,
                "level": result.get("level"),
                "pictures": pictures,
                "ok": ok,
                "reason": None if reason is None else clean(reason),
                "found_by": result.get("found_by"),
            }
        )

    def give_up(self, reason: str) -> None:
        """Count every audit without an answer as failed. ``reason`` is of the attacks; clients have not answered."""
        for one in (one for job in self.jobs for one in job.scored_by):
            self._finish(one, {"objective": None, "seconds": 0.0}, "failed", reason=reason)
        for job in self.asked.values():
            self._finish(job, self._result(job), "failed", reason=UNSCORED[4])
        self.jobs.clear()
        self.asked.clear()

    def close(self) -> None:
        """End the worker and what it is attacking."""
        self.worker.close()
