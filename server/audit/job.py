"""One attack to run: a folder of the queue, and the names of the files in it that server and worker exchange."""

from dataclasses import dataclass

JOB, RESULT, STOP = "job.json", "result.json", "stop"
DESCENTS = "descents"
VIEW, TRUTH, REBUILT = "view.safetensors", "truth.safetensors", "rebuilt.safetensors"
PATTERN = "pattern.safetensors"  # of a canary's view, until the worker has made that


@dataclass(frozen=True)
class Job:
    """An attack that was ordered, as ``job.json`` keeps it. ``client`` is the client's number, None for a canary."""

    round: int
    kind: str
    client: int | None
    threat: str
    defense: str
    matched: bool = True  # whether the round's control is of this view's kind

    @property
    def name(self) -> str:
        suffix = self.kind if self.client is None else f"client-{self.client}"
        return f"round-{self.round:06d}-{suffix}"
