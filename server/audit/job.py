"""One attack to run: a folder of the queue, and the names of the files in it that server and worker exchange."""

import json
from dataclasses import dataclass, fields
from pathlib import Path

JOB, RESULT, STOP = "job.json", "result.json", "stop"
DESCENTS = "descents"
VIEW, TRUTH, REBUILT = "view.safetensors", "truth.safetensors", "rebuilt.safetensors"
PATTERN = "pattern.safetensors"  # of a canary's view, until the worker has made that
SENT = "sent.safetensors"  # what else a view's client was sent
PRIOR = "prior.safetensors"  # a network that the attack learnt before, where the job travels
PUBLIC = "public.safetensors"  # beside the folders: what all canaries and shadows of a run need


@dataclass(frozen=True)
class Job:
    """An attack that was ordered, as ``job.json`` keeps it. ``client`` is the number of the client that was audited, or
    of the one whose view a control of its own matches; None for the round's canaries."""

    round: int
    kind: str
    client: int | None
    threat: str
    defense: str

    @classmethod
    def read(cls, path: Path) -> "Job":
        """From ``job.json``; what another release kept beside is left out."""
        kept, known = json.loads(path.read_text())["job"], {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in kept.items() if name in known})

    @property
    def name(self) -> str:
        suffix = "" if self.client is None else f"-{self.client}"
        return f"round-{self.round:06d}-{self.kind}{suffix}"
