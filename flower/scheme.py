"""What a pruning scheme has the clients of somebody else's app do, in ``protected``: what our own clients do for it.

PruneFL's clients tell squared gradients, and one of them makes the run's first mask; FedDST's move their mask half-way;
LotteryFL's prune theirs before the first step, by a score of held-out examples that the app takes, and go back to the
weights that the run started from: those of its first round, or for a client that comes later in a record beside the
second message it is sent. Before, it does not prune.
``Prune`` writes a ``SchemeOrder`` beside the model: the scheme, its settings and the round. ``Defend`` takes it out,
asks the site's conditions (``client.policy``), and finds in ``strategies`` what our own client would do in that round.
``LocalScheme`` does it inside the guarded loop, from the gradients as the defenses left them: nothing undefended
decides about what leaves. The answer has records of its own:

``mask``                  of round 0: the first mask, and nothing else
``prunella-importance``   mean squared gradients of the weights that the scheme prunes, where the update may leave, too
``prunella-base``         the mask that the local weights ended under

Departures from our own client: local steps are the app's, so a move that is due after more of them than the loop takes
is refused; the state of the app's optimiser is emptied at a move, as our momentum is.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from flwr.app import ConfigRecord

from prunella.client.policy import Policy
from prunella.core.config import Run, parse_run
from prunella.core.errors import ConfigError, PrunellaError, WireError
from prunella.core.trees import Mask, Tree, apply_mask, map_trees, scale, zeros_like
from prunella.flower.channels import Told, parsed, read
from prunella.pruning.channels import Group
from prunella.strategies import Scheme, find, scheme_settings
from prunella.strategies.prunefl import MaskRule, settled, with_limit
from prunella.strategies.round.plan import LocalPlan, Readjust, RoundContext

FIRST, IMPORTANCE, BASE, FRESH = "mask", "prunella-importance", "prunella-base", "prunella-fresh"


class Settled(PrunellaError):
    """The first mask is made: no further step of the app's loop is needed."""


def _unscored(params: Tree) -> float:
    raise ConfigError("this scheme scores held-out examples")


class Known(NamedTuple):
    """What a client knows beside the message: what it kept for the scheme, the weights that the run started from, and
    the share of held-out examples that weights label right."""

    kept: dict[str, Tree] = {}
    fresh: Callable[[], Tree] = dict
    accuracy: Callable[[Tree], float] = _unscored


NOTHING = Known()


@dataclass(frozen=True)
class SchemeOrder:
    """A scheme's round. ``names`` are the arrays that it prunes, ``costs`` of a weight of each (PruneFL's first mask);
    round 0 makes the first mask; ``starts``: the message has the weights that the run starts from; ``channels`` are
    those that are one, where whole filters go. No scheme orders nothing."""

    scheme: str = ""
    round: int = 0
    rate: float = 0.0
    local_steps: int = 1
    names: tuple[str, ...] = ()
    costs: tuple[float, ...] = ()
    settings: str = "{}"
    starts: bool = False
    channels: Told = ()

    def record(self) -> dict[str, Any]:
        """As a config record holds it."""
        return {"scheme": json.dumps(vars(self))}

    @classmethod
    def read(cls, record: ConfigRecord | None) -> "SchemeOrder":
        """Of a message's record; raises ``WireError`` for what is none, and ``ConfigError`` for settings that are not
        the scheme's."""
        text = "" if record is None else record.get("scheme", "")
        if not text:
            return cls()
        try:
            given = json.loads(str(text))
            lists = {"names": tuple(map(str, given["names"])), "costs": tuple(map(float, given["costs"]))}
            order = cls(**{**given, **lists, "channels": parsed(given.get("channels", ()))})
            known = isinstance(order.round, int) and order.round >= 0
        except (ValueError, TypeError, KeyError):
            known = False
        if not known:
            raise WireError("malformed", "what the server's scheme asks for cannot be read")
        _ = order.found, order.given, order.run
        return order

    @property
    def found(self) -> Scheme:
        return find(self.scheme)

    @property
    def run(self) -> Run:
        return parse_run({"strategy": self.scheme, "rate": self.rate, "local-steps": self.local_steps})

    @property
    def given(self) -> Any:
        """The scheme's settings."""
        return scheme_settings(self.scheme, json.loads(self.settings))

    @property
    def first(self) -> bool:
        """Whether the run's first mask is asked for."""
        return bool(self.scheme) and self.round == 0

    @property
    def importance(self) -> bool:
        """Whether squared gradients are, in a round in which the scheme uses them."""
        sends = self.found.client.sends_importance if self.scheme else None
        return sends is not None and self.round > 0 and sends(self.given, self.round)

    @property
    def validates(self) -> bool:
        """Whether clients score held-out examples for the scheme."""
        return bool(self.scheme) and self.found.client.validates

    def plan(self, params: Tree, mask: Mask, names: frozenset[str], known: Known = NOTHING) -> LocalPlan:
        """What our own client would change in this round."""
        planner = self.found.client.plan if self.scheme and self.round else None
        if planner is None:
            return LocalPlan()

        def groups() -> list[Group]:
            return read(self.channels, params)

        return planner(RoundContext(self.run, self.given, self.round, params, mask, names, *known, groups))

    def needs_loop(self, policy: Policy) -> list[str]:
        """The scheme, if it works inside the loop: on gradients of single steps that this site lets it have, or on
        where training starts."""
        wanted = self.first or self.validates or self.plan({}, {}, frozenset()).readjust is not None
        return [self.scheme] if wanted or (self.importance and policy.covers_gradients) else []


@dataclass
class LocalScheme:
    """One client's half of one round: squared gradients since the mask last moved, and when it moves.

    After every ``every`` steps, ``most`` times at most, ``move`` maps weights, mean squared gradients and mask to
    weights and mask; with ``first`` until the mask's size settles.
    """

    names: frozenset[str] = frozenset()
    collects: bool = False
    move: Readjust | None = None
    every: int = 0
    most: int = 0
    first: bool = False
    steps: int = 0
    moves: int = 0
    done: bool = False
    squares: Tree = field(default_factory=dict)
    plan: LocalPlan = LocalPlan()

    @classmethod
    def of(
        cls, order: SchemeOrder, params: Tree, mask: Mask, names: frozenset[str], known: Known = NOTHING
    ) -> "LocalScheme":
        """For weights and mask as received, of which the arrays ``names`` are the scheme's."""
        if order.first:
            settings = with_limit(order.given, order.rate)
            moves = max(1, settings.initial_steps // settings.initial_interval)
            cost = {n: c for n, c in zip(order.names, order.costs, strict=True) if n in names}
            rule = MaskRule(settings, cost, read(order.channels, params))
            return cls(names, True, _first_move(rule), settings.initial_interval, moves, first=True)
        plan = order.plan(params, mask, names, known)
        if plan.readjust is not None:
            return cls(names, True, plan.readjust, plan.before, 1, plan=plan)
        return cls(names, order.importance, plan=plan)

    def observe(self, gradient: Tree) -> None:
        """Add a step's gradient, as the defenses left it."""
        if self.collects:
            before = self.squares or zeros_like(gradient)
            self.squares = map_trees(lambda s, g: torch.addcmul(s, g, g), before, gradient)
            self.steps += 1

    def mean(self) -> Tree:
        """Mean squared gradients."""
        return scale(self.squares, 1 / max(self.steps, 1))

    def after_step(self, params: Tree, mask: Mask) -> tuple[Tree, Mask] | None:
        """Weights and mask to go on with, where the mask moves after this step."""
        if self.move is None or self.done or self.steps < self.every or self.moves >= self.most:
            return None
        moved, after = self.move(params, self.mean(), mask)
        self.squares, self.steps, self.moves = {}, 0, self.moves + 1
        self.done = self.first and (self.moves >= self.most or settled(mask, after))
        return moved, after

    def require_moved(self, scheme: str) -> None:
        """Refuse a loop that ended before the mask could move."""
        if self.move is not None and not self.moves:
            fewer = "initial_interval" if self.first else "local_steps"
            raise ConfigError(
                f"{scheme} moves the mask after {self.every} local steps, and the loop took {self.steps}: take more of "
                f"them for a message (epochs, smaller batches), or give the server's Prune a smaller {fewer}"
            )


def _first_move(rule: MaskRule) -> Callable[[Tree, Tree, Mask], tuple[Tree, Mask]]:
    def move(params: Tree, squares: Tree, mask: Mask) -> tuple[Tree, Mask]:
        after = rule.next_mask(params, squares, mask)
        return apply_mask(params, after), after

    return move
