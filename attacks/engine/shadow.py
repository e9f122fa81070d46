"""What an attacker who knows the client's program can play through on public images: the interface, without the player.

Attacks that learn, or that choose their settings, do so on such updates, whose truth is public. ``server.audit``
implements it with the run's own training and defenses, and draws of its own in place of the client's key.
"""

from typing import Protocol

from prunella.core.types import ServerView
from prunella.tasks.examples import Examples


class Shadow(Protocol):
    """A rehearsal of the attacked client in the attacked round: same weights, masks, training and defenses.

    ``public`` are images of the task's shape that no client trained on. ``send`` plays one client who holds just these
    examples, in batches of ``batch_size`` for ``steps`` steps (as the attacked view has them where they are None), and
    returns what the server would see. Another ``draw`` is another client, with other noise; of hundreds, some
    share what their defenses learnt.
    """

    public: Examples

    def send(self, shown: Examples, draw: int, steps: int | None = None, batch_size: int | None = None) -> ServerView:
        """The view of a client that trained on ``shown``. Raises ``DefenseError`` where its defense withholds it."""
        ...
