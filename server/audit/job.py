"""One attack to run: a folder of the queue, and the names of the files in it that server and worker exchange."""

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

from prunella.attacks import trace

JOB, RESULT, STOP = "job.json", "result.json", "stop"
DESCENTS = "descents"
VIEW, TRUTH, REBUILT = trace.VIEW, "truth.safetensors", "rebuilt.safetensors"
PATTERN = "pattern.safetensors"  # of a canary's view, until the worker has made that
SENT = "sent.safetensors"  # what else a view's client was sent
PRIOR = "prior.safetensors"  # a network that the attack learnt before, where the job travels
PUBLIC = "public.safetensors"  # beside the folders: what all canaries and shadows of a run need


@dataclass(frozen=True)
class Job:
    """An attack that was ordered, as ``job.json`` keeps it. ``client`` is the number of the client that was audited, or
    of the one whose view a control of its own matches; None for the round's canaries, and for a sum, which is attacked
    once and scored by each of ``clients``. ``sites`` is the number of clients in a sum, None of one client's update.
    ``doubt`` is why finding nothing in it would prove nothing, "" where nothing is known that would. ``squares``:
    whether squared gradients that are not all zero stood beside the update."""

    round: int
    kind: str
    client: int | None
    threat: str
    defense: str
    sites: int | None = None
    clients: tuple[int, ...] = ()
    doubt: str = ""
    squares: bool = False

    @classmethod
    def read(cls, path: Path) -> "Job":
        """From ``job.json``; what another release kept beside is left out."""
        kept, known = json.loads(path.read_text())["job"], {field.name for field in fields(cls)}
        job = cls(**{name: value for name, value in kept.items() if name in known})
        return replace(job, clients=tuple(job.clients))

    @classmethod
    def all(cls, queue: Path) -> "list[Job]":
        """Those in a queue, in the order of their names."""
        return [cls.read(path) for path in sorted(queue.glob(f"*/{JOB}"))]

    @property
    def name(self) -> str:
        suffix = "" if self.client is None else f"-{self.client}"
        return f"round-{self.round:06d}-{self.kind}{suffix}"

    @property
    def folder(self) -> str:
        """The name of its folder in the queue: the sum's, where one client scores a sum."""
        return self.name if self.sites is None else replace(self, client=None).name

    @property
    def scored_by(self) -> "tuple[Job, ...]":
        """What becomes a line of its own: of a sum, a job for each client that scores it."""
        return tuple(replace(self, client=client, clients=()) for client in self.clients) or (self,)
