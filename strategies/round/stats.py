"""What a round cost and lost, for metrics."""

from dataclasses import dataclass, field

from flwr.app import Message


@dataclass
class RoundStats:
    """Clients that were there, chosen and asked; bytes in each direction; failures by reason; seconds, of training by
    the ``timed`` clients that told theirs; what clients withheld, as the sum of the shares of those whose updates were
    ``seen``, which those in a sum are not; their ledger lines; whether the round is ``void``: it did not count;
    the share of the weights offered that a robust rule left ``still``; and whom the scheme asked before the first
    round, with the answer, if one came.

    >>> stats = RoundStats()
    >>> stats.fail("timeout")
    >>> stats.failures
    {'timeout': 1}
    """

    available: int = 0
    selected: int = 0
    sent: int = 0
    replies: int = 0
    down: int = 0
    up: int = 0
    dense: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    said: str = ""  # by the last reply that was left out, or of it
    train_seconds: float = 0.0
    timed: int = 0
    aggregate_seconds: float = 0.0
    withheld: float = 0.0
    seen: int = 0
    void: bool = False
    still: float = 0.0
    ledgers: list[dict[str, float | int | str]] = field(default_factory=list)
    first: list[tuple[int, Message]] = field(default_factory=list)

    def fail(self, reason: str, said: str = "") -> None:
        """Count one failure."""
        self.failures[reason] = self.failures.get(reason, 0) + 1
        self.said = said or self.said
