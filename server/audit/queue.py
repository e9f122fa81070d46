"""The audit queue: which views are attacked, and what becomes of the reconstructions. It never holds up training.

Every ``audit-every`` rounds, and after the last one, the server files jobs: the canary without a defense (the positive
control), the canary under the run's defenses, and the views of up to ``audit-clients`` consenting clients, exactly as
received. An audit passes through these modules, in this order:

1. ``queue`` writes the view into a folder (``job``), ``process`` keeps the worker alive;
2. ``worker`` runs the attack that ``attacks.ATTACKS`` names, built on ``attacks.engine``, and scores a canary itself
   (``attacks.score``), since the truth behind a canary is public;
3. ``queue`` sends a client's reconstruction to that client, which alone can score it, and ``answers`` checks the reply;
4. the outcome becomes a line of ``audits.jsonl``, and ``server.report.verdict`` says what the audits of a run show.

``advance``, called between rounds, takes in whatever is ready and waits for nothing. Only the run's end waits.
"""

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from prunella.attacks import find_attack
from prunella.attacks.score.control import rebuilt_control
from prunella.attacks.score.leakage import paired
from prunella.attacks.score.level import ORDER
from prunella.attacks.trace import save_trace
from prunella.core.config import Raw, Run, parse_section
from prunella.core.errors import AttackError, ConfigError
from prunella.core.files import read_tree, write_json, write_tree
from prunella.core.trees import Tree, add, apply_mask, subtract
from prunella.core.types import ServerView
from prunella.core.untrusted import clean
from prunella.server.audit.answers import read_pictures, read_scores
from prunella.server.audit.canary import Canary, Sent
from prunella.server.audit.job import JOB, REBUILT, RESULT, TRUTH, VIEW, Job
from prunella.server.audit.process import MAX_STARTS, WorkerProcess
from prunella.strategies.round.replies import Contribution, Expected
from prunella.strategies.round.roster import Member, Roster
from prunella.tasks.task import Task
from prunella.wire.records import to_dense

QUERY = "query.audit"
Outcome = dict[str, Any]


def view_of(run: Run, expected: Expected, contribution: Contribution, start: Tree) -> ServerView:
    """Exactly what the server saw of one client in one round. ``start``: the weights from which training began."""
    moved = add(contribution.update, subtract(expected.params, start))
    return ServerView(
        params=start,
        update=apply_mask(moved, contribution.shared),
        mask=contribution.base,
        shared=contribution.shared,
        buffers=expected.buffers,
        importance=contribution.importance,
        received_buffers=contribution.buffers,
        num_examples=min(run.local_steps * run.batch_size, contribution.weight),
        steps=run.local_steps,
        batch_size=min(run.batch_size, contribution.weight),
        learning_rate=run.learning_rate,
        momentum=run.momentum,
        weight_decay=run.weight_decay,
        defenses=contribution.applied,
    )


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


class Auditor:
    """The audits of one run. ``finished`` collects their outcomes as lines for the run store."""

    def __init__(self, run: Run, raw: Raw, task: Task, canary: Canary, roster: Roster, folder: Path) -> None:
        self.attack = find_attack(run.attack)
        if self.attack.gives == "labels" or self.attack.needs:
            # Its images say nothing, or it cannot start: either way a verdict would call a leaking run safe.
            raise ConfigError(
                f"attack={run.attack} does not rebuild images from a view alone: a run cannot be judged by it"
            )
        self.run, self.task, self.canary, self.roster = run, task, canary, roster
        self.settings = ready_settings(run.attack, raw, task)
        self.queue = folder / "traces"
        self.pictures = folder / "pictures"
        self.jobs: list[Job] = []
        self.asked: dict[str, Job] = {}
        self.finished: list[Outcome] = []
        self.worker = WorkerProcess(self.queue, run.audit_workers)
        self._audited: dict[int, int] = {}

    def prepare(self) -> None:
        """Start the worker before there is work, because its imports take seconds."""
        if self.run.audit_every:
            self.queue.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._start_worker()

    def recover(self, round: int, answered: Iterable[Outcome]) -> None:
        """After a restart at ``round``: resume audits without an outcome, drop those of rounds that are repeated."""
        done = {(line["round"], line["kind"], line["client"]) for line in answered}
        for path in sorted(self.queue.glob(f"*/{JOB}")):
            job = Job(**json.loads(path.read_text())["job"])
            if job.round > round:
                shutil.rmtree(path.parent)
            elif (job.round, job.kind, job.client) not in done:
                self.jobs.append(job)

    def due(self, round: int) -> bool:
        every = self.run.audit_every
        return every > 0 and (round % every == 0 or round == self.run.rounds)

    # filing jobs -----------------------------------------------------------------------------------------------------
    def file_controls(self, expected: Expected) -> None:
        """The positive control and the same canary under the run's defenses, from the weights just sent."""
        self._file(expected.round, "control", None, self.canary.send(expected, "none"))
        if self.run.defense_names != ("none",):
            self._file(expected.round, "control-defended", None, self.canary.send(expected, "defended"))

    def file_client(self, expected: Expected, contribution: Contribution, member: Member | None, start: Tree) -> None:
        """A consenting client's view, while this round's quota lasts."""
        taken = self._audited.get(expected.round, 0)
        if member is None or member.consent == "deny" or taken >= self.run.audit_clients:
            return
        self._audited[expected.round] = taken + 1
        self._file(expected.round, "client", member.client, view_of(self.run, expected, contribution, start))

    def _file(self, round: int, kind: str, client: int | None, sent: Sent | ServerView) -> None:
        view = sent.view if isinstance(sent, Sent) else sent
        threat = f"{self.attack.threat}. {view.describe()}"
        job = Job(round, kind, client, threat, ",".join(view.defenses) or "none")
        folder = self.queue / job.name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if isinstance(sent, Sent):
            write_tree(folder / TRUTH, {"x": sent.truth.x, "y": sent.truth.y})
        save_trace(folder / VIEW, view, self.task, {"round": round, "kind": kind})
        order = {"attack": self.run.attack, "settings": self.settings, "seed": self.run.seed + round}
        order["device"] = self.run.attack_device
        write_json(folder / JOB, {**order, "job": asdict(job)})
        self.jobs.append(job)
        self._start_worker()

    def _start_worker(self) -> None:
        if not self.worker.ensure():
            log(WARNING, "the audit worker ended %d times: its audits are given up", MAX_STARTS)
            self.give_up()

    # taking in answers -----------------------------------------------------------------------------------------------
    def advance(self, grid: Grid) -> None:
        """Take in what is ready; wait for nothing."""
        for job in [job for job in self.jobs if (self.queue / job.name / RESULT).exists()]:
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

    def _result(self, job: Job) -> Outcome:
        found: Outcome = json.loads((self.queue / job.name / RESULT).read_text())
        return found

    def _answered(self, job: Job, result: Outcome, grid: Grid) -> None:
        if result["error"] is not None:
            log(WARNING, "audit %s failed: %s", job.name, clean(result["error"]))
            self._finish(job, result, "failed")
        elif job.client is None:
            self._canary_scored(job, result)
        else:
            self._ask(job, grid)

    def _canary_scored(self, job: Job, result: Outcome) -> None:
        rebuilt, truth = (read_tree(self.queue / job.name / file)[0] for file in (REBUILT, TRUTH))
        picture = self._keep_pictures(job, *paired(truth["x"], rebuilt["x"], result["assignment"]))
        ok = rebuilt_control(result["scores"]) if job.kind == "control" else None
        self._finish(job, result, "control-failed" if ok is False else "scored", result["scores"], picture, ok)

    def _ask(self, job: Job, grid: Grid) -> None:
        """Send the reconstruction to the client whose update was attacked; it alone can tell how good it is."""
        member = self.roster.find(job.client)
        ids: list[str] = []
        if member is not None:
            rebuilt, _ = read_tree(self.queue / job.name / REBUILT)
            content = RecordDict({"reconstruction": to_dense(rebuilt), "audit": ConfigRecord({"round": job.round})})
            message = Message(content, dst_node_id=member.node, message_type=QUERY)
            ids = [message_id for message_id in grid.push_messages([message]) if message_id is not None]
        self.asked |= dict.fromkeys(ids, job)
        if not ids:
            log(WARNING, "audit %s: its client cannot be reached", job.name)
            self._finish(job, self._result(job), "failed")

    def _scored(self, job: Job, reply: Message) -> None:
        result = self._result(job)
        if reply.has_error():
            log(WARNING, "audit %s: the client could not score it (%s)", job.name, clean(reply.error.reason or ""))
            return self._finish(job, result, "failed")
        outcome = reply.content.config_records.get("audit", ConfigRecord()).get("outcome")
        numbers = reply.content.metric_records.get("scores")
        reported = reply.content.config_records.get("audit", ConfigRecord()).get("level")
        if outcome != "scored" or reported not in ORDER:
            return self._finish(job, result, "no-consent" if outcome == "no-consent" else "failed")
        try:
            scores = None if numbers is None else read_scores(numbers)
            pictures = read_pictures(reply.content.array_records.get("pictures"), self.task.shape)
        except AttackError as error:
            log(WARNING, "audit %s: the client's answer is left out: %s", job.name, error)
            return self._finish(job, result, "failed")
        kept = self._keep_pictures(job, *pictures) if pictures else None
        self._finish(job, {**result, "level": reported}, "scored", scores, kept)

    def _keep_pictures(self, job: Job, original: Any, rebuilt: Any) -> str:
        path = self.pictures / f"{job.name}.safetensors"
        write_tree(path, {"original": original, "reconstruction": rebuilt})
        return f"{self.pictures.name}/{path.name}"

    def _finish(
        self,
        job: Job,
        result: Outcome,
        outcome: str,
        scores: Any = None,
        pictures: str | None = None,
        ok: bool | None = None,
    ) -> None:
        self.finished.append(
            {
                "round": job.round,
                "kind": job.kind,
                "client": job.client,
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
            }
        )

    def give_up(self) -> None:
        """Count every audit without an answer as failed."""
        for job in [*self.jobs, *self.asked.values()]:
            self._finish(job, {"objective": None, "seconds": 0.0}, "failed")
        self.jobs.clear()
        self.asked.clear()

    def close(self) -> None:
        """End the worker and what it is attacking."""
        self.worker.close()
