"""Order, names, checks and state of a chain."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from prunella import privacy
from prunella.core.errors import ConfigError, DefenseError
from prunella.core.files import read_tree, write_tree
from prunella.core.randomness import PrivateGenerator, rehearsal
from prunella.core.trees import Mask, Tree, full_mask, map_trees, zeros_like
from prunella.privacy import DEFENSES
from prunella.privacy.chain import (
    Chain,
    Link,
    build_chain,
    check_model,
    compose,
    flatten_state,
    observe,
    present,
    release,
    start,
    unflatten_state,
    working_chain,
)
from prunella.privacy.defense import (
    Entry,
    GradientDefense,
    Outgoing,
    State,
    UpdateDefense,
    ignore_gradient,
    keep_received,
)
from prunella.privacy.none import NoDefense

FIT = rehearsal(0, purpose="fit")  # nothing that is fitted in this file draws
IMAGES = torch.rand(5, 1, 3, 3, generator=torch.Generator().manual_seed(3))
LIKE = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(1.0)}


@pytest.mark.parametrize(
    "names, mend",
    [
        (["pripune"], "did you mean 'priprune'"),
        (["dgp", "dgp"], "once"),
        (["none", "dgp"], "alone"),
        (["dgp", "channel-natural"], "channel-natural,dgp"),
        (["ats", "leakage-guard"], "leave one of the two out"),
        ([], "'none'"),
    ],
)
def test_a_wrong_chain_says_its_mend(names: list[str], mend: str) -> None:
    with pytest.raises(ConfigError, match=mend):
        build_chain(names, {})


@pytest.mark.parametrize("key", ["dgp.tpo", "priprune.lambda-prii", "channel-natural.kapa", "largest.rates"])
def test_an_unknown_key_of_a_section_names_the_nearest(key: str) -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        build_chain([key.split(".")[0]], {key: 1})


@pytest.mark.parametrize(
    "key, value",
    [("dgp.top", 0.3), ("largest.rate", 1.0), ("mix.largest-share", 1.5), ("priprune.temperature", 0)]
    + [("priprune.initial-alpha", 1.0), ("priprune.lambda-sha", -1.0), ("channel-natural.kappa", 0)]
    + [("channel-natural.batch", 0), ("random.scope", "tensor")],
)
def test_a_setting_out_of_range_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError):
        build_chain([key.split(".")[0]], {key: value})


def test_settings_arrive() -> None:
    chain = build_chain(["channel-natural", "largest", "dgp"], {"channel-natural.kappa": 7, "largest.pseudo": False})
    assert chain.links[0].settings.kappa == 7 and chain.links[1].settings.pseudo is False
    assert chain.names == ("channel-natural", "largest", "dgp")


def outgoing(update: Tree) -> Outgoing:
    full = full_mask(update)
    return Outgoing(update, full, full, update)


def test_release_names_the_whole_chain_in_order_and_applies_update_defenses_in_turn() -> None:
    chain = build_chain(["channel-natural", "random", "dgp"], {})
    state = start(chain, IMAGES, LIKE, {}, FIT)
    out, after, applied = release(chain, outgoing(LIKE), state, rehearsal(0, purpose="test"))
    assert applied == ("channel-natural", "random", "dgp")
    left = int((~out.participates["w"]).sum()) + int(~out.participates["b"])
    assert left == 3 and set(after) == set(applied)


def test_the_default_chains_of_all_stages_run_end_to_end() -> None:
    chain = build_chain(["channel-natural", "priprune"], {})
    state = start(chain, IMAGES, LIKE, {}, FIT)
    g = rehearsal(0, purpose="test")
    assert present(chain, IMAGES, state, g).shape == IMAGES.shape
    weights, state = compose(chain, LIKE, state, g)
    gradient, state = observe(chain, LIKE, LIKE, state, g)
    assert torch.equal(gradient["w"], LIKE["w"]) and torch.equal(weights["w"], LIKE["w"])
    assert not torch.equal(state["priprune"]["alpha"]["w"], torch.full((2, 3), 0.5))


def faulty(apply: Any) -> Chain:
    entry = Entry("update", NoDefense, lambda settings: defense)
    defense = UpdateDefense(lambda like: {}, keep_received, ignore_gradient, apply)
    return Chain((Link("faulty", NoDefense(), defense, entry),))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda o, s: None, "answers with a NoneType, not with a pair (Outgoing, state)"),
        (lambda o, s: o, "answers with an Outgoing, not with a pair"),
        (lambda o, s: (o.update, s), "answers with a tuple, not with a pair"),
        (lambda o, s: (replace(o, update=None), s), "update is a NoneType, not a dict of tensors by name"),
        (lambda o, s: (replace(o, update={n: t.numpy() for n, t in o.update.items()}), s), "not a tensor"),
        (lambda o, s: (o, None), "state is not a dict of named trees"),
        (lambda o, s: (o, {"n": 3}), "state is not a dict of named trees"),
        (lambda o, s: (o, {"sum": {"w": 1.0}}), "state is not a dict of named trees"),
    ],
)
def test_what_is_no_answer_of_a_defense_is_refused_in_words(answer: Any, words: str) -> None:
    """Somebody's own may return anything."""
    chain = faulty(lambda o, s, g: answer(o, s))
    state = start(chain, IMAGES, LIKE, {}, FIT)
    with pytest.raises(DefenseError) as caught:
        release(chain, outgoing(LIKE), state, rehearsal(0, purpose="test"))
    assert words in str(caught.value) and str(caught.value).startswith("faulty")


@pytest.mark.parametrize("state", [None, {"n": 3}, {"sum": {"w": 1.0}}])
def test_a_state_begins_as_trees_of_tensors(state: Any) -> None:
    defense = GradientDefense(lambda like: state, lambda gradient, s, g: (gradient, s))
    chain = Chain((Link("counts", NoDefense(), defense, Entry("gradient", NoDefense, lambda settings: defense)),))
    with pytest.raises(DefenseError, match="counts: its state is not a dict"):
        start(chain, IMAGES, LIKE, {}, FIT)


def test_an_own_state_of_other_trees_than_init_makes_is_no_other_version() -> None:
    """Its owner is not to remove the client's state, in which its account is: the next round would be refused again."""
    (link,) = faulty(lambda o, s, g: (o, {"sum": {"w": torch.ones(2)}})).links
    chain = Chain((replace(link, name="own:SUMS"),))
    _, state, _ = release(chain, outgoing(LIKE), start(chain, IMAGES, LIKE, {}, FIT), rehearsal(0, purpose="test"))
    with pytest.raises(DefenseError) as caught:
        start(chain, IMAGES, LIKE, state, FIT)
    assert "the trees that init makes (none)" in str(caught.value) and "remove" not in str(caught.value)


def test_an_own_defense_is_of_a_stage_and_of_its_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "own_kinds.py").write_text(
        "from prunella.privacy.defense import DataDefense, Entry\n"
        "from prunella.privacy.none import NoDefense\n"
        "STAGE = Entry('updates', NoDefense, lambda settings: None)\n"
        "NOTHING = Entry('update', NoDefense, lambda settings: None)\n"
        "OTHER = Entry('update', NoDefense, lambda settings: DataDefense(lambda x, g: {}, lambda x, s, g: x))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name, words in {
        "STAGE": "of the stage 'updates': it is one of data, gradient, update",
        "NOTHING": "of the stage update, and what it builds is a NoneType",
        "OTHER": "of the stage update, and what it builds is a DataDefense",
    }.items():
        with pytest.raises(ConfigError, match=words):
            build_chain([f"own_kinds:{name}"], {})


def leaks(o: Outgoing, s: State, g: PrivateGenerator) -> tuple[Outgoing, State]:
    return Outgoing(o.update, map_trees(torch.zeros_like, o.shared), o.participates, o.local), s


def widens(o: Outgoing, s: State, g: PrivateGenerator) -> tuple[Outgoing, State]:
    return Outgoing(zeros_like(o.update), full_mask(o.update), o.participates, o.local), s


def mutes(o: Outgoing, s: State, g: PrivateGenerator) -> tuple[Outgoing, State]:
    return Outgoing(zeros_like(o.update), o.shared, map_trees(torch.zeros_like, o.participates), o.local), s


def reshapes(o: Outgoing, s: State, g: PrivateGenerator) -> tuple[Outgoing, State]:
    return Outgoing(map_trees(torch.flatten, o.update), o.shared, o.participates, o.local), s


def drops(o: Outgoing, s: State, g: PrivateGenerator) -> tuple[Outgoing, State]:
    return Outgoing({"w": o.update["w"]}, o.shared, o.participates, o.local), s


def divides(o: Outgoing, s: State, g: PrivateGenerator) -> tuple[Outgoing, State]:
    return Outgoing(map_trees(lambda t: t / 0, o.update), o.shared, o.participates, o.local), s


@pytest.mark.parametrize("fault", [leaks, widens, mutes, reshapes, drops, divides])
def test_a_faulty_defense_does_not_get_out(fault: Any) -> None:
    base = {"w": torch.tensor([[True, True, False], [True, True, True]]), "b": torch.tensor(True)}
    update = {name: torch.where(base[name], torch.full_like(t, 7.25), torch.zeros(())) for name, t in LIKE.items()}
    with pytest.raises(DefenseError) as caught:
        release(faulty(fault), Outgoing(update, base, base, update), {"faulty": {}}, rehearsal(0, purpose="test"))
    assert "7.25" not in str(caught.value) and "faulty" in str(caught.value)


def test_what_comes_in_nonzero_outside_the_base_mask_is_stopped() -> None:
    base = map_trees(lambda t: torch.zeros_like(t, dtype=torch.bool), LIKE)
    with pytest.raises(DefenseError, match="outside its shared mask"):
        release(build_chain(["none"], {}), Outgoing(LIKE, base, base, LIKE), {"none": {}}, rehearsal(0, purpose="test"))


def test_a_chain_watches_steps_where_a_defense_of_it_sees_gradients() -> None:
    watching = {name for name in privacy.DEFENSES if build_chain([name], {}).watches}
    gradient = {name for name, entry in privacy.DEFENSES.items() if entry.stage == "gradient"}
    assert watching == gradient and "dp-sgd" in gradient
    assert build_chain(["channel-white", "dgp"], {}).watches is False and build_chain(["gaussian", "dgp"], {}).watches


def test_a_defense_that_observes_watches_unless_its_entry_says_that_the_small_network_will_do() -> None:
    (link,) = build_chain(["priprune"], {}).links
    assert link.entry.small and not link.watches
    assert replace(link, entry=replace(link.entry, small=False)).watches


def test_gradient_defenses_run_before_update_defenses_observe(monkeypatch: pytest.MonkeyPatch) -> None:
    def halve(gradient: Tree, state: State, g: PrivateGenerator) -> tuple[Tree, State]:
        return map_trees(lambda t: t / 2, gradient), {"calls": {"n": state["calls"]["n"] + 1}}

    def keep(gradient: Tree, received: Tree, mask: Mask, state: State, g: PrivateGenerator) -> State:
        return {"seen": gradient}

    half = GradientDefense(lambda like: {"calls": {"n": torch.tensor(0)}}, halve)
    spy = UpdateDefense(lambda like: {"seen": like}, keep_received, keep, lambda o, s, g: (o, s))
    made = {
        "half": Entry("gradient", NoDefense, lambda settings: half),
        "spy": Entry("update", NoDefense, lambda settings: spy),
    }
    monkeypatch.setattr(privacy, "DEFENSES", made)
    chain = build_chain(["half", "spy"], {})
    state = start(chain, IMAGES, LIKE, {"half": {"calls": {"n": torch.tensor(4)}}}, FIT)
    defended, state = observe(chain, LIKE, LIKE, state, rehearsal(0, purpose="test"))
    assert torch.equal(defended["w"], LIKE["w"] / 2) and torch.equal(state["spy"]["seen"]["w"], LIKE["w"] / 2)
    assert int(state["half"]["calls"]["n"]) == 5
    with pytest.raises(ConfigError, match="half,spy"):
        build_chain(["spy", "half"], {})


@pytest.mark.parametrize("names", [["none"], ["dgp"], ["channel-natural", "priprune"], ["mix"], ["largest", "dgp"]])
def test_state_round_trips_through_a_file(names: list[str], tmp_path: Path) -> None:
    chain = build_chain(names, {})
    g = rehearsal(2, purpose="test")
    state = start(chain, IMAGES, LIKE, {}, FIT)
    _, state = compose(chain, LIKE, state, g)
    _, state = observe(chain, LIKE, LIKE, state, g)
    _, state, _ = release(chain, outgoing(LIKE), state, g)
    write_tree(tmp_path / "state", flatten_state(state))
    loaded = start(chain, IMAGES, LIKE, unflatten_state(read_tree(tmp_path / "state")[0]), FIT)
    flat, again = flatten_state(state), flatten_state(loaded)
    assert flat.keys() == again.keys() and all(torch.equal(flat[k], again[k]) for k in flat)
    one, two = (release(chain, outgoing(LIKE), s, rehearsal(1, purpose="test"))[0] for s in (state, loaded))
    assert all(torch.equal(one.update[k], two.update[k]) for k in LIKE)


def test_state_of_another_model_or_version_is_refused() -> None:
    chain = build_chain(["dgp"], {})
    state = start(chain, IMAGES, LIKE, {}, FIT)
    with pytest.raises(DefenseError, match="names"):
        start(chain, IMAGES, {"other": torch.zeros(2)}, state, FIT)
    with pytest.raises(DefenseError, match="shape"):
        start(chain, IMAGES, {"w": torch.zeros(9), "b": torch.tensor(1.0)}, state, FIT)
    with pytest.raises(DefenseError, match="another version"):
        start(chain, IMAGES, LIKE, {"dgp": {}}, FIT)


@pytest.mark.parametrize(
    "names, mend",
    [
        (["channel-natural", "dp-sgd"], "fitted on all images"),
        (["soteria", "dp-sgd"], "only gradient defense"),
        (["dp-sgd", "outpost"], "only gradient defense"),
        (["dp-sgd", "dp-psac"], "only one of"),
    ],
)
def test_an_epsilon_does_not_stand_beside_what_it_does_not_cover(names: list[str], mend: str) -> None:
    with pytest.raises(ConfigError, match=mend):
        build_chain(names, {})


def test_a_private_chain_refuses_batch_norm_and_a_gradient_without_its_step() -> None:
    chain = build_chain(["dp-sgd", "dgp"], {})
    assert chain.private is not None and build_chain(["dgp"], {}).private is None
    with pytest.raises(DefenseError, match="without batch norm"):
        check_model(chain, {"bn.running_mean": torch.zeros(2)})
    check_model(chain, {})
    check_model(build_chain(["dgp"], {}), {"bn.running_mean": torch.zeros(2)})
    with pytest.raises(DefenseError, match="without batch norm"):  # around a guard as well
        check_model(build_chain(["dgp", "leakage-guard"], {}), {"bn.running_mean": torch.zeros(2)})
    with pytest.raises(DefenseError, match="without its local step"):
        observe(chain, LIKE, LIKE, start(chain, IMAGES, LIKE, {}, FIT), rehearsal(0, purpose="test"))


@pytest.mark.parametrize(
    ("names", "raw"),
    [
        (["mask-hiding"], {}),
        (["gaussian", "mask-hiding"], {}),
        (["dgp"], {"dgp.top": 0.0, "dgp.bottom": 0.0}),
        (["top-k"], {"top-k.keep": 1.0}),
        (["random"], {"random.rate": 0.0}),
        (["mix"], {"mix.rate": 0.0}),
        (["soteria"], {"soteria.rate": 0.0}),
        (["outpost", "dgp"], {"outpost.noise": 0.0, "outpost.prune": 0.0}),
    ],
)
def test_a_client_runs_no_defense_that_does_nothing(names: list[str], raw: dict[str, float]) -> None:
    """It would count as one, to an owner who requires it and in what a run says of itself."""
    with pytest.raises(ConfigError, match="does nothing|none does"):
        working_chain(names, raw)
    assert build_chain(names, raw).names == tuple(names), "an experiment may"


@pytest.mark.parametrize("names", [[name] for name in DEFENSES if name != "mask-hiding"] + [["dgp", "mask-hiding"]])
def test_at_its_defaults_every_defense_works(names: list[str]) -> None:
    assert working_chain(names, {}).names == tuple(names)
