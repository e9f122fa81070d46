"""What a client defense is: a stage, frozen settings, pure functions and explicit state.

Stages run in the order of ``STAGES``. A *data* defense touches the images once, when they are presented; a *gradient*
defense touches every local step's gradient; an *update* defense decides what leaves. All state is a ``State``: named
trees that the client writes to its own disk between rounds. No function changes its inputs, and none returns its input
when it could not do its job: it raises ``DefenseError``.

Each setting declares whether larger values (``Larger[...]``) or smaller ones (``Smaller[...]``) make its defense
stronger, or that neither does (``Equal[...]``). A client whose owner requires a defense uses this to read the required
settings as bounds (``client.policy``). So a direction is declared only where it holds for all data and all other
settings: less leaves, or the same with more noise, or (PriPrune) a coordinate becomes likelier to stay at every step.

>>> from prunella.privacy.dgp import DualPruning
>>> {name: which.value for name, which in directions(DualPruning).items()}
{'top': 'or more', 'bottom': 'or more', 'feedback': ''}
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeVar, get_type_hints, runtime_checkable

from torch import Tensor

from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Mask, Tree

Stage = Literal["data", "gradient", "update"]
HEURISTIC = "heuristic, no ε"
STAGES: tuple[Stage, ...] = ("data", "gradient", "update")
State = dict[str, Tree]


@runtime_checkable
class Idle(Protocol):
    """Settings of a defense with which it may leave everything as it is: a client does not run such a chain."""

    @property
    def idle(self) -> bool: ...


T = TypeVar("T")


class Stronger(Enum):
    """Which values of a setting are at least as strong as a given one, in words that stand after it."""

    LARGER = "or more"
    SMALLER = "or less"
    EQUAL = ""


Larger = Annotated[T, Stronger.LARGER]
Smaller = Annotated[T, Stronger.SMALLER]
Equal = Annotated[T, Stronger.EQUAL]


def directions(settings: type) -> dict[str, Stronger]:
    """The direction of every field of a settings dataclass that declares one."""
    hints = get_type_hints(settings, include_extras=True)
    declared = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: each for name, notes in declared.items() for each in notes if isinstance(each, Stronger)}


@dataclass(frozen=True)
class Outgoing:
    """What a client is about to send, and what an update defense may restrict further.

    ``update`` is local minus received weights, zero outside ``shared``. ``shared`` marks the coordinates whose value
    leaves. ``participates`` marks those that count when the server averages: a defense that *withholds* a value
    (PriPrune) removes it from both; one that sends *zero now and the rest later* (DGP, Top-k with error feedback) keeps
    it in ``participates``. ``local`` are the trained weights, base-pruned; they never leave. ``base`` is the base mask,
    given only to a defense that fills what others withheld.
    """

    update: Tree
    shared: Mask
    participates: Mask
    local: Tree
    base: Mask | None = None


class DataDefense(NamedTuple):
    """``fit`` sees the client's images [N, C, H, W] once and returns state; ``apply`` maps a batch [B, C, H, W] to one
    of the same shape."""

    fit: Callable[[Tensor, PrivateGenerator], State]
    apply: Callable[[Tensor, State, PrivateGenerator], Tensor]


class GradientDefense(NamedTuple):
    """``apply`` maps one step's gradient to the one the optimiser sees."""

    init: Callable[[Tree], State]
    apply: Callable[[Tree, State, PrivateGenerator], tuple[Tree, State]]


class UpdateDefense(NamedTuple):
    """``compose`` builds the local starting point from the received weights, ``observe`` sees each local step's
    (defended) gradient, ``apply`` restricts what leaves. ``observe`` gets gradient, received weights, base mask and
    state."""

    init: Callable[[Tree], State]
    compose: Callable[[Tree, State, PrivateGenerator], tuple[Tree, State]]
    observe: Callable[[Tree, Tree, Mask, State, PrivateGenerator], State]
    apply: Callable[[Outgoing, State, PrivateGenerator], tuple[Outgoing, State]]


@dataclass(frozen=True)
class Step:
    """One local step, for the defenses that need more than its gradient: functions, since each costs a step or more.

    ``per_example`` yields the gradients of single examples, a few at a time: trees of [b, *shape]. ``representation``
    gives the name of the last linear layer's weight [out, F], its input r [B, F] and the norms of dr/dx [B, F].
    ``params`` are the weights of this step and ``mask`` the base mask; ``number`` counts the steps of this round from
    0; ``batch`` is the number of examples to divide a sum by, which under Poisson sampling is the expected one.
    """

    params: Tree
    mask: Mask
    number: int
    batch: int
    per_example: Callable[[], Iterator[Tree]]
    representation: Callable[[], tuple[str, Tensor, Tensor]]


class StepDefense(NamedTuple):
    """A gradient defense that looks at the step. One with an epsilon (``Entry.private``) makes the gradient itself from
    clipped single ones: the gradient it is given is zero, so that nothing unclipped can get past it."""

    init: Callable[[Tree], State]
    apply: Callable[[Tree, Step, State, PrivateGenerator], tuple[Tree, State]]


@runtime_checkable
class PrivateSettings(Protocol):
    """What the ledger reads from a defense with an epsilon: noise over clipping bound, for one example's part."""

    @property
    def noise_multiplier(self) -> float: ...


Defense = DataDefense | GradientDefense | StepDefense | UpdateDefense


def keep_received(received: Tree, state: State, generator: PrivateGenerator) -> tuple[Tree, State]:
    """``compose`` of a defense that starts from what the server sent."""
    return received, state


def ignore_gradient(gradient: Tree, received: Tree, mask: Mask, state: State, generator: PrivateGenerator) -> State:
    """``observe`` of a defense that learns nothing during training."""
    return state


@dataclass(frozen=True)
class Entry:
    """A line of ``privacy.DEFENSES``: its stage, settings (a frozen dataclass), builder, and what it claims.

    ``claim`` is printed with every result: ``HEURISTIC`` unless a theorem says more. ``noisy``: it changes a gradient
    or an update even where that is zero. ``private``: a ``StepDefense`` with ``PrivateSettings``, which the ledger
    reads. ``fills``: an update defense that shares what others withheld; only a guard may follow it. ``guards``: what
    it does depends on an attack on the private images (``attacks.self_attack``); it must be the last of a chain.
    ``small``: an update defense whose ``observe`` does not depend on the gradient in rows and columns of a tensor of
    which the base mask keeps nothing, so that a client may train the network without them (``strategies.round.small``).
    ``transforms``: it trains on images that show what the client's own do in another form, which scores do not see.
    """

    stage: Stage
    settings: type
    build: Callable[[Any], Defense]
    claim: str = HEURISTIC
    noisy: bool = False
    private: bool = False
    fills: bool = False
    guards: bool = False
    small: bool = False
    transforms: bool = False


Registry = Mapping[str, Entry]
