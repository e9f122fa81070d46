"""Audits: which views are attacked, and what becomes of the reconstructions. Never on the training path.

Every ``audit-every`` rounds (and after the last) the server files jobs for the worker: the canary without a defense
(the positive control), the canary with the run's defenses, and the views of up to ``audit-clients`` consenting clients,
exactly as received. Between rounds ``advance`` looks for answers, sends reconstructions to the clients that can score
them and takes in scores that have arrived; nothing there waits. Only ``drain``, after training, does.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from logging import WARNING
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from torch import Tensor

from prunella.attacks import find_attack
from prunella.attacks.score.control import PSNR_FLOOR
from prunella.attacks.score.leakage import paired
from prunella.attacks.score.level import ORDER
from prunella.attacks.trace import save_trace
from prunella.core.config import Raw, Run, parse_section
from prunella.core.errors import AttackError, ConfigError
from prunella.core.files import read_tree, write_json, write_tree
from prunella.core.installation import IMPORT_ROOT
from prunella.core.trees import Tree, add, apply_mask, subtract
from prunella.core.types import ServerView
from prunella.core.untrusted import clean, figure
from prunella.server.audit.canary import Canary, Sent
from prunella.server.audit.worker import JOB, REBUILT, RESULT, STOP, TRUTH, VIEW
from prunella.strategies.round.replies import Contribution, Expected
from prunella.strategies.round.roster import Member, Roster
from prunella.tasks.task import Task
from prunella.wire.records import from_dense, to_dense, unflatten

QUERY = "query.audit"
# The scores of ``attacks.score.leakage`` and the ranges they have; rounding may pass them by a little.
SCORES = {"psnr": (-1.0, 101.0), "nmi": (-0.01, 1.01), "ami": (-10.0, 1.01), "ssim": (-1.01, 1.01), "mse": (0.0, 1.01)}
SHARES = {"iip": (0.0, 1.0), "label_accuracy": (0.0, 1.0), "images": (0.0, 1e6)}
STATS = ("mean", "worst", "random", "other")
MAX_PICTURES = 16
MAX_STARTS = 5  # of the worker without an answer in between; one that cannot start would be started for ever
Outcome = dict[str, Any]


def view_of(run: Run, expected: Expected, contribution: Contribution, start: Tree) -> ServerView:
    """What the server saw of one client in one round, no more and no less; ``start`` is where training began."""
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


def read_scores(record: MetricRecord) -> Outcome:
    """A client's scores as ``Leakage.to_dict`` makes them, or ``AttackError``: no other name, no odd number."""
    bounds = {f"{score}.{stat}": limits for score, limits in SCORES.items() for stat in STATS} | SHARES
    if not bounds.keys() - {"label_accuracy"} <= record.keys() <= bounds.keys():
        raise AttackError("scores are missing, or others than those asked for")
    found = {name: figure(value, *bounds[name]) for name, value in record.items()}
    if None in found.values():
        raise AttackError("a score is not a number within its bounds")
    return {"label_accuracy": None, **unflatten(found)}


def read_pictures(record: ArrayRecord | None, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor] | None:
    """Originals and reconstructions [N, C, H, W] of a consenting client, or ``AttackError``."""
    if record is None:
        return None
    try:
        tree = from_dense(record)
        pair = tree["original"], tree["reconstruction"]
    except Exception as error:  # noqa: BLE001 - bytes of a stranger: whatever reading them raises, they are no pictures
        raise AttackError("the pictures cannot be read") from error
    for x in pair:
        if x.dtype != torch.float32 or tuple(x.shape[1:]) != shape or not bool(torch.isfinite(x).all()):
            raise AttackError("the pictures are not images of this task")
    if not len(pair[0]) == len(pair[1]) <= MAX_PICTURES:
        raise AttackError("the pictures do not pair up")
    return pair[0].clamp(0, 1), pair[1].clamp(0, 1)


def rebuilt_control(scores: Outcome) -> bool:
    """Whether a canary was rebuilt: its label named and a PSNR at which a picture is plainly recognisable."""
    return bool(scores["label_accuracy"] == 1.0 and scores["psnr"]["mean"] >= PSNR_FLOOR)


def ready_settings(name: str, raw: Raw, task: Task) -> dict[str, Any]:
    """The attack's own settings, for the worker; a file they name by its full path, since it works elsewhere.

    Raises ``ConfigError`` where that file is missing or does not fit the task.
    """
    line, settings = find_attack(name), {k: v for k, v in raw.items() if k.startswith(f"{name}.")}
    if line.ready is None:
        return settings
    try:
        line.ready(parse_section(raw, name, line.settings), task)
    except AttackError as error:
        raise ConfigError(f"attack={name}: {error}") from None
    return settings | {f"{name}.prior": str(Path(str(settings[f"{name}.prior"])).absolute())}


@dataclass(frozen=True)
class Job:
    """An attack under way, as ``job.json`` keeps it. ``client`` is the client's number, None for a canary."""

    round: int
    kind: str
    client: int | None
    threat: str
    defense: str

    @property
    def name(self) -> str:
        suffix = self.kind if self.client is None else f"client-{self.client}"
        return f"round-{self.round:06d}-{suffix}"


class Auditor:
    """The audits of one run. ``finished`` collects outcomes as lines for the run store."""

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
        self._worker: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._audited: dict[int, int] = {}

    def warm_up(self) -> None:
        """Start the worker before there is work: its imports take seconds."""
        if self.run.audit_every:
            self.queue.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._start_worker()

    def recover(self, round: int, answered: Iterable[Outcome]) -> None:
        """After a restart at ``round``: take up the audits that had no outcome, forget those of rounds done again."""
        known = {(line["round"], line["kind"], line["client"]) for line in answered}
        for path in sorted(self.queue.glob(f"*/{JOB}")):
            job = Job(**json.loads(path.read_text())["job"])
            if job.round > round:
                shutil.rmtree(path.parent)
            elif (job.round, job.kind, job.client) not in known:
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
        if self._worker is not None and self._worker.poll() is None:
            return
        if self._starts == MAX_STARTS:
            log(WARNING, "the audit worker ended %d times: its audits are given up", MAX_STARTS)
            self.give_up()
            return
        self._starts += 1
        (self.queue / STOP).unlink(missing_ok=True)
        root = str(IMPORT_ROOT)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
        }
        arguments = str(self.queue), str(os.getpid()), str(self.run.audit_workers)
        command = [sys.executable, "-m", "prunella.server.audit.worker", *arguments]
        self._worker = subprocess.Popen(command, env=environment, cwd=root, stdin=subprocess.DEVNULL)

    # taking in answers -----------------------------------------------------------------------------------------------
    def advance(self, grid: Grid) -> None:
        """Take in what is ready; wait for nothing."""
        for job in [job for job in self.jobs if (self.queue / job.name / RESULT).exists()]:
            self.jobs.remove(job)
            self._starts = 0
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
        """Send the reconstruction to the client it was made of; it alone can tell how good it is."""
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
        said = reply.content.config_records.get("audit", ConfigRecord()).get("level")
        if outcome != "scored" or said not in ORDER:
            return self._finish(job, result, "no-consent" if outcome == "no-consent" else "failed")
        try:
            scores = None if numbers is None else read_scores(numbers)
            pictures = read_pictures(reply.content.array_records.get("pictures"), self.task.shape)
        except AttackError as error:
            log(WARNING, "audit %s: the client's answer is left out: %s", job.name, error)
            return self._finish(job, result, "failed")
        kept = self._keep_pictures(job, *pictures) if pictures else None
        self._finish(job, {**result, "level": said}, "scored", scores, kept)

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
        """Whatever has no answer by now has failed, and is counted so."""
        for job in [*self.jobs, *self.asked.values()]:
            self._finish(job, {"objective": None, "seconds": 0.0}, "failed")
        self.jobs.clear()
        self.asked.clear()

    def close(self) -> None:
        """End the worker and what it is attacking."""
        if self._worker is None:
            return
        (self.queue / STOP).touch()
        self._worker.terminate()
        try:
            self._worker.wait(timeout=60)
        except subprocess.TimeoutExpired:  # on a machine with too much to do; the run has ended well all the same
            self._worker.kill()
            self._worker.wait()
