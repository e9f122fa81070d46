"""The defense chain of one client: data, gradient and update defenses in order, checked before and after.

Nothing leaves a chain unchecked: same names and shapes, finite, nothing shared outside the base mask, nothing nonzero
outside what is marked shared. A violation raises ``DefenseError`` and the update stays on the client; messages carry
names and shapes only. State is explicit: ``start`` makes what is missing, every other function returns the next state.

>>> chain = build_chain(["dgp"], {"dgp.top": 0.1})
>>> chain.names, chain.claims
(('dgp',), ('heuristic, no ε',))
>>> build_chain(["dpg"], {})
Traceback (most recent call last):
core.errors.ConfigError: unknown defense 'dpg': did you mean 'dgp'? Valid: ...
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from prunella.core.config import Raw, parse_section
from prunella.core.errors import ConfigError, DefenseError, with_article
from prunella.core.foreign import is_foreign
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Mask, Tree, all_finite, full_mask, zeros_like
from prunella.privacy import find_defense
from prunella.privacy.defense import (
    STAGES,
    DataDefense,
    Defense,
    Entry,
    GradientDefense,
    Idle,
    Outgoing,
    PrivateSettings,
    State,
    Step,
    StepDefense,
    UpdateDefense,
    ignore_gradient,
)

ChainState = dict[str, State]
T = TypeVar("T")
KINDS: dict[str, tuple[type, ...]] = {
    "data": (DataDefense,), "gradient": (GradientDefense, StepDefense), "update": (UpdateDefense,)
}  # fmt: skip


@dataclass(frozen=True)
class Link:
    """One defense of a chain: its name, its settings, its functions and its registry line."""

    name: str
    settings: Any
    defense: Defense
    entry: Entry

    @property
    def watches(self) -> bool:
        """Whether it sees the local steps' gradients, those of pruned filters among them."""
        if isinstance(self.defense, UpdateDefense):
            return self.defense.observe is not ignore_gradient and not self.entry.small
        return not isinstance(self.defense, DataDefense)


@dataclass(frozen=True)
class Chain:
    """Defenses in the order they are applied."""

    links: tuple[Link, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(link.name for link in self.links)

    @property
    def claims(self) -> tuple[str, ...]:
        return tuple(link.entry.claim for link in self.links)

    @property
    def private(self) -> PrivateSettings | None:
        """The settings of the defense that has an epsilon, or None."""
        return next((link.settings for link in self.links if link.entry.private), None)

    @property
    def fills(self) -> bool:
        """Whether what leaves hides which coordinates were withheld."""
        return any(link.entry.fills for link in self.links)

    @property
    def guard(self) -> Any:
        """The settings of the defense that an attack on the outgoing update controls, or None."""
        return next((link.settings for link in self.links if link.entry.guards), None)

    @property
    def watches(self) -> bool:
        """Whether a defense sees the local steps' gradients, those of pruned filters among them."""
        return any(link.watches for link in self.links)

    def updates(self) -> list[tuple[str, UpdateDefense]]:
        return [(link.name, link.defense) for link in self.links if isinstance(link.defense, UpdateDefense)]


def _check_names(names: Sequence[str]) -> None:
    entries = {name: find_defense(name) for name in names}
    if not names:
        raise ConfigError("no defense is named: write defenses = 'none' to run without one")
    if len(set(names)) != len(names):
        raise ConfigError(f"defenses = '{','.join(names)}' names a defense twice: name each once")
    if "none" in names and len(names) > 1:
        raise ConfigError(f"defenses = '{','.join(names)}': 'none' stands alone, leave it out")
    for number, name in enumerate(names):
        after = [other for other in names[number + 1 :] if not entries[other].guards]
        if after and entries[name].fills:
            raise ConfigError(f"{name} fills what the other defenses withheld: name it last")
        if names[number + 1 :] and entries[name].guards:
            raise ConfigError(f"{name} attacks what the other defenses let through: name it last")
        changed = [other for other in names if entries[other].transforms]
        if changed and entries[name].guards:
            raise ConfigError(
                f"{name} compares what an attack finds with the client's images, which {changed[0]} has transformed: "
                "leave one of the two out"
            )
    ordered = sorted(names, key=lambda name: STAGES.index(entries[name].stage))
    if list(names) != ordered:
        raise ConfigError(f"defenses run as data, gradient, update: write defenses = '{','.join(ordered)}'")


def _check_private(names: Sequence[str]) -> None:
    """An epsilon covers what is computed from noised gradients: no other defense may look at the images."""
    entries = {name: find_defense(name) for name in names}
    private = [name for name in names if entries[name].private]
    if len(private) > 1:
        raise ConfigError(f"defenses = '{','.join(names)}': only one of {', '.join(private)} can make the gradient")
    for name in names if private else ():
        if entries[name].stage == "data":
            raise ConfigError(
                f"{name} is fitted on all images, which the ε of {private[0]} does not cover: leave it out"
            )
        if entries[name].guards:
            raise ConfigError(f"{name} looks at the images, which the ε of {private[0]} does not cover: leave it out")
    gradients = [name for name in names if entries[name].stage == "gradient"]
    if private and gradients != private:
        raise ConfigError(f"{private[0]} must be the only gradient defense: leave out the others")


def check_model(chain: Chain, buffers: Tree) -> None:
    """Refuse batch norm under an epsilon and behind a guard: its statistics mix examples and leave without noise."""
    if chain.private is not None and buffers:
        raise DefenseError("batch-norm buffers leave without noise, so no ε holds: choose a model without batch norm")
    if chain.guard is not None and buffers:
        raise DefenseError("batch norm's statistics leave around a guard: choose a model without batch norm")


def _link(name: str, raw: Raw) -> Link:
    entry = find_defense(name)
    settings: Any = parse_section(raw, name, entry.settings)
    built = entry.build(settings)
    if not isinstance(built, KINDS[entry.stage]):  # somebody's own may build anything
        raise ConfigError(f"{name} is of the stage {entry.stage}, and what it builds is {with_article(built)}")
    return Link(name, settings, built, entry)


def build_chain(names: Sequence[str], raw: Raw) -> Chain:
    """The chain for ``names`` with the settings ``<name>.*`` of ``raw``. Raises ``ConfigError``."""
    _check_names(names)
    _check_private(names)
    return Chain(tuple(_link(name, raw) for name in names))


def working_chain(names: Sequence[str], raw: Raw) -> Chain:
    """``build_chain`` for a client, which is to leave nothing as it is: a run behind a defense that does nothing would
    count as defended. Raises ``ConfigError``."""
    chain = build_chain(names, raw)
    for number, link in enumerate(chain.links):
        if isinstance(link.settings, Idle) and link.settings.idle:
            raise ConfigError(f"{link.name} does nothing with these settings: give it something to do, or leave it out")
        before = (each.entry for each in chain.links[:number])
        if link.entry.fills and not any(entry.stage == "update" and not entry.fills for entry in before):
            fix = f"write defenses = 'dgp,{link.name}'"
            raise ConfigError(f"{link.name} fills what other defenses withhold, and none does: {fix}")
    return chain


# ---- state

FITTED, IMAGES = "fitted", "images"  # what a defense that is fitted on images was fitted on: a tree of its state


def _require_like(name: str, what: str, tree: Tree, like: Tree) -> None:
    if not isinstance(tree, dict):
        raise DefenseError(f"{name}: {what} is {with_article(tree)}, not a dict of tensors by name")
    if tree.keys() != like.keys():
        different = sorted(tree.keys() ^ like.keys())
        raise DefenseError(f"{name}: {what} differs from the model in {len(different)} names, first: {different[0]}")
    for key, tensor in tree.items():
        if not isinstance(tensor, Tensor):
            raise DefenseError(f"{name}: {what} {key} is {with_article(tensor)}, not a tensor")
        if tensor.shape != like[key].shape:
            raise DefenseError(f"{name}: {what} {key} has shape {tuple(tensor.shape)}, not {tuple(like[key].shape)}")


def _kept(name: str, state: Any) -> State:
    """A defense's next state, if it can be saved."""
    trees = state.values() if isinstance(state, dict) else [None]
    if not all(isinstance(tree, dict) and all(isinstance(t, Tensor) for t in tree.values()) for tree in trees):
        raise DefenseError(f"{name}: its state is not a dict of named trees, each of tensors by name")
    kept: State = state
    return kept


def _answer(name: str, given: Any, kind: type[T]) -> tuple[T, State]:
    """What a defense answers, apart: what it made, and its next state. Somebody's own may answer with anything."""
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], kind):
        raise DefenseError(f"{name} answers with {with_article(given)}, not with a pair ({kind.__name__}, state)")
    return given[0], _kept(name, given[1])


def _resume(name: str, saved: State, fresh: State) -> State:
    """The saved state on the device and in the order of the fresh one. Random draws follow that order."""
    if saved.keys() != fresh.keys() and is_foreign(name):
        made = ", ".join(sorted(fresh)) or "none"
        raise DefenseError(f"{name}: a state has the trees that init makes ({made}), also the one that apply answers")
    if saved.keys() != fresh.keys():
        raise DefenseError(f"{name}: the saved state is of another version: remove this client's state to begin again")
    for tree in fresh:
        _require_like(name, f"saved {tree}", saved[tree], fresh[tree])
    return {tree: {key: saved[tree][key].to(t.device) for key, t in fresh[tree].items()} for tree in fresh}


def fitted_to(state: State, images: str) -> bool:
    """Whether the state of a defense that is fitted on images was fitted on those of this digest; "" is of any."""
    tree = state.get(FITTED, {})
    return not images or (IMAGES in tree and bytes(tree[IMAGES].tolist()) == bytes.fromhex(images))


def fit(defense: DataDefense, x: Tensor, generator: PrivateGenerator, images: str) -> State:
    """The state fitted on ``x``, which says what it was fitted on."""
    marked = {FITTED: {IMAGES: torch.tensor(list(bytes.fromhex(images)), dtype=torch.uint8)}} if images else {}
    return {**defense.fit(x, generator), **marked}


def _start_link(
    link: Link, x: Tensor, like: Tree, saved: State | None, generator: PrivateGenerator, images: str
) -> State:
    if isinstance(link.defense, DataDefense):
        if saved is not None and fitted_to(saved, images):
            return saved
        return fit(link.defense, x, generator, images)
    fresh = link.defense.init(like)
    return _kept(link.name, fresh) if saved is None else _resume(link.name, saved, fresh)


def start(
    chain: Chain, x: Tensor, like: Tree, state: ChainState, generator: PrivateGenerator, images: str = ""
) -> ChainState:
    """State for every link: fitted on the client's images ``x`` [N, C, H, W] or made for the weights ``like`` where it
    is missing, checked and moved to the device of ``like`` where it was saved. What was fitted on other images than
    those of the digest ``images`` is fitted anew: noise that is right for some says nothing of others."""
    return {link.name: _start_link(link, x, like, state.get(link.name), generator, images) for link in chain.links}


def fits(chain: Chain, state: ChainState, images: str = "") -> bool:
    """Whether ``start`` would look at the images."""
    fitted = [link.name for link in chain.links if isinstance(link.defense, DataDefense)]
    return not all(name in state and fitted_to(state[name], images) for name in fitted)


def flatten_state(state: ChainState) -> Tree:
    """One tree for ``core.files.write_tree``; names are ``defense/tree/parameter``.

    >>> flatten_state({"dgp": {"error": {"fc.weight": torch.zeros(1)}}})
    {'dgp/error/fc.weight': tensor([0.])}
    """
    return {f"{d}/{t}/{p}": x for d, trees in state.items() for t, tree in trees.items() for p, x in tree.items()}


def unflatten_state(flat: Tree) -> ChainState:
    """The inverse of ``flatten_state``. A defense without state is missing, and ``start`` makes it again."""
    state: ChainState = {}
    for name, tensor in flat.items():
        defense, tree, parameter = name.split("/", 2)
        state.setdefault(defense, {}).setdefault(tree, {})[parameter] = tensor
    return state


# ---- the three stages


def _require_finite(name: str, what: str, tree: Tree) -> None:
    for key, tensor in tree.items():
        if not all_finite({key: tensor}):
            raise DefenseError(f"{name}: {what} {key} is not finite")


def present(chain: Chain, batch: Tensor, state: ChainState, generator: PrivateGenerator) -> Tensor:
    """The images [B, C, H, W] as training sees them."""
    shown = batch
    for link in chain.links:
        if isinstance(link.defense, DataDefense):
            shown = link.defense.apply(shown, state[link.name], generator)
            _require_like(link.name, "batch", {"x": shown}, {"x": batch})
            _require_finite(link.name, "batch", {"x": shown})
    return shown


def compose(chain: Chain, received: Tree, state: ChainState, generator: PrivateGenerator) -> tuple[Tree, ChainState]:
    """The weights local training starts from. The caller applies the base mask to them afterwards."""
    weights, after = received, dict(state)
    for name, defense in chain.updates():
        weights, after[name] = _answer(name, defense.compose(weights, after[name], generator), dict)
        _require_like(name, "weights", weights, received)
        _require_finite(name, "weights", weights)
    return weights, after


def observe(
    chain: Chain,
    gradient: Tree,
    received: Tree,
    state: ChainState,
    generator: PrivateGenerator,
    step: Step | None = None,
) -> tuple[Tree, ChainState]:
    """One local step: the gradient the optimiser is to use, defended, and shown to the update defenses.

    A chain with an epsilon makes the gradient itself from ``step``: what it is given is not used. Without a ``step``
    every coordinate counts as inside the base mask.
    """
    if chain.private is not None:
        gradient = zeros_like(gradient)
    _require_finite("chain", "gradient", gradient)
    defended, after = gradient, dict(state)
    for link in chain.links:
        if isinstance(link.defense, DataDefense | UpdateDefense):
            continue
        given = _defend(link, defended, step, after[link.name], generator)
        defended, after[link.name] = _answer(link.name, given, dict)
        _require_like(link.name, "gradient", defended, gradient)
        _require_finite(link.name, "gradient", defended)
    mask = full_mask(gradient) if step is None else step.mask
    for name, defense in chain.updates():
        after[name] = _kept(name, defense.observe(defended, received, mask, after[name], generator))
    return defended, after


def _defend(
    link: Link, gradient: Tree, step: Step | None, state: State, generator: PrivateGenerator
) -> tuple[Tree, State]:
    if isinstance(link.defense, GradientDefense):
        return link.defense.apply(gradient, state, generator)
    if not isinstance(link.defense, StepDefense) or step is None:
        raise DefenseError(f"{link.name}: cannot work on a gradient without its local step")
    return link.defense.apply(gradient, step, state, generator)


def _require_inside(name: str, what: str, mask: Mask, outer: Mask) -> None:
    _require_like(name, what, mask, outer)
    for key in mask:
        if mask[key].dtype != torch.bool or (mask[key] is not outer[key] and bool((mask[key] & ~outer[key]).any())):
            raise DefenseError(f"{name}: {what} {key} reaches outside the mask it was given")


def _check_outgoing(name: str, outgoing: Outgoing, entry: Outgoing) -> None:
    _require_like(name, "update", outgoing.update, entry.update)
    _require_finite(name, "update", outgoing.update)
    _require_inside(name, "shared mask", outgoing.shared, entry.shared)
    _require_inside(name, "mask of participating coordinates", outgoing.participates, entry.participates)
    _require_inside(name, "shared mask", outgoing.shared, outgoing.participates)
    for key, tensor in outgoing.update.items():
        if bool(((tensor != 0) & ~outgoing.shared[key]).any()):
            raise DefenseError(f"{name}: update {key} is not zero outside its shared mask")


def release(
    chain: Chain, outgoing: Outgoing, state: ChainState, generator: PrivateGenerator
) -> tuple[Outgoing, ChainState, tuple[str, ...]]:
    """What leaves, the state to keep, and the names of every defense of the chain in the order applied.

    On entry ``shared`` and ``participates`` are the base mask and ``update`` is zero outside it.
    """
    after = dict(state)
    current = outgoing
    _check_outgoing("chain", current, outgoing)
    for link in chain.links:
        if not isinstance(link.defense, UpdateDefense):
            continue
        # A defense shares nothing that the one before it did not share. One that fills may, inside the base mask.
        before = replace(current, base=outgoing.shared) if link.entry.fills else current
        given = link.defense.apply(before, after[link.name], generator)
        current, after[link.name] = _answer(link.name, given, Outgoing)
        _check_outgoing(link.name, current, outgoing if link.entry.fills else before)
    return current, after, chain.names
