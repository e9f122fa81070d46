"""A client takes part on its owner's conditions or not at all."""

import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

from prunella.client.policy import Policy, check_run, read_policy, within
from prunella.core.config import kebab, parse_run, parse_section, section_defaults
from prunella.core.errors import ConfigError, DefenseError
from prunella.core.trees import full_mask
from prunella.privacy import DEFENSES, SECTIONS
from prunella.privacy.accounting import Privacy
from prunella.privacy.chain import build_chain
from prunella.privacy.defense import Stronger, directions
from prunella.tasks.task import initial, prunable
from prunella.wire.records import from_coded, to_coded
from tests.client.test_app import TASK, model, send
from tests.client.test_audit import question
from tests.client.test_charging import RUN


def against(config: dict[str, object], **raw: object) -> None:
    settings = {"defenses": "dgp", "dgp.bottom": 0.75, **raw}
    check_run(read_policy(config), parse_run(settings), settings, parse_section(settings, "privacy", Privacy))


@pytest.mark.parametrize(
    "require", ["", "dgp", "dgp, dgp.bottom=0.75", "dgp.bottom = 0.75", "rounds=10", "evaluation=server", "model='cnn'"]
)
def test_a_run_that_meets_them_passes(require: str) -> None:
    against({"require": require}, rounds=10, evaluation="server", model="cnn")
    against({"require": "dgp"}, defenses="channel-natural,dgp")


@pytest.mark.parametrize(
    ("require", "words"),
    [
        ("top-k", "the defenses top-k; the run has dgp"),
        ("dgp, dgp.bottom=0.8", "dgp.bottom of 0.8 or more; the run has 0.75"),
        ("gaussian.deviation=0.01", "the defenses gaussian; the run has dgp"),
        ("rounds=11", "rounds=11; the run has 10"),
        ("model=cnn", "model=cnn; the run has prunella.attacks.rob:cnn"),
    ],
)
def test_another_is_refused_in_words(require: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        against({"require": require}, model="prunella.attacks.rob:cnn")


@pytest.mark.parametrize("config", [{"require": "dgp"}, {"require": "rounds=10"}, {"epsilon-budget": 8.0}])
def test_a_defense_of_nobody_knows_whom_is_neither_let_in_nor_imported(config: dict[str, object], capsys) -> None:
    """``this`` prints when it is imported."""
    with pytest.raises(ConfigError, match="defenses of this release; the run has this:KEEP"):
        against(config, rounds=10, defenses="dp-sgd,dgp,this:KEEP")
    with pytest.raises(ConfigError, match="unknown defense in require"):
        read_policy({"require": "this:KEEP"})
    assert "this" not in sys.modules
    against({}, defenses="this:KEEP")  # a client without conditions runs the code of whoever submits


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"require": "dpg"}, "did you mean 'dgp'"),
        ({"require": "dgp.botom=0.75"}, "did you mean 'dgp.bottom'"),
        ({"require": "dgp.bottom=much"}, "dgp.bottom"),
        ({"require": "dgp.top=0.5"}, "must stay under 1"),
        ({"require": "rounds=0"}, "rounds"),
        ({"require": "dgp.top=0.1, dgp.top=0"}, "dgp.top is given twice"),
        ({"require": "dp-sgd, gaussian"}, "only gradient defense"),
        ({"require": "none"}, "none is no defense"),
        ({"require": "defenses=dgp"}, "name the defenses themselves"),
        ({"require": "model='cnn"}, "a quotation mark"),
        ({"require": "dp-sgd, noise-multiplier<=1"}, "write dp-sgd.noise-multiplier>=1"),
        ({"require": "dgp, bottom>0.5"}, "write dgp.bottom>=0.5"),
        ({"require": "model<=cnn"}, "compares numbers"),
        ({"require": "random, rate<=0.3"}, "write random.rate, or rate first"),
        ({"require": "dgp, botom>=0.75"}, "did you mean 'bottom'"),
        ({"require": "dp-sgd.clip<=1, clip=2"}, "given twice"),
        ({"epsilon-budget": -1.0}, "epsilon-budget in the node configuration"),
        ({"epsilon-budget": "much"}, "epsilon-budget in the node configuration"),
        ({"epsilon-budget": float("nan")}, "epsilon-budget in the node configuration"),
        ({"delta": 1.0}, "delta"),
        ({"require": "dp-sgd", "delta": 1e-8}, "privacy.delta<=1e-08"),
        ({"sum_peers": "f"}, "write require, epsilon-budget, delta, sum-least"),
        ({"sum-lest": 3}, "is no condition"),
        ({"privacy.epsilon-budget": 3.0}, "is no condition"),
        ({"budget": 3.0}, "is no condition"),
        ({"state_dir": "/var/lib/prunella"}, "state_dir in the node configuration is not read: write state-dir"),
    ],
)
def test_a_condition_that_cannot_be_held_is_no_condition(config: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_policy(config)


def test_keys_of_an_app_s_own_are_its_own_affair() -> None:
    assert not read_policy({"budget-hours": 3, "sum-statistics": True, "state-dir": "x"}).conditions


def test_a_model_that_the_server_has_imported_here_must_be_the_owner_s_word() -> None:
    against({}, model="this:model")
    against({"require": "dgp, model=this:model"}, model="this:model")
    for config in ({"require": "dgp"}, {"require": "dgp, model=other:model"}, {"sum-least": 4}):
        with pytest.raises(ConfigError, match="takes part only with"):
            against(config, model="this:model")
    assert "this" not in sys.modules


def test_a_comparison_is_the_owner_s_own_bound() -> None:
    require = {"require": "local-steps<=8, dp-sgd, clip<=1, noise-multiplier>=1"}
    for clip, noise in ((1.0, 1.0), (0.5, 2.0)):
        against(require, defenses="dp-sgd", **{"dp-sgd.clip": clip, "dp-sgd.noise-multiplier": noise, "local-steps": 4})
    for key, value, words in (
        ("dp-sgd.clip", 2.0, "dp-sgd.clip of 1.0 or less; the run has 2.0"),
        ("dp-sgd.noise-multiplier", 0.5, "dp-sgd.noise-multiplier of 1.0 or more; the run has 0.5"),
        ("local-steps", 9, "local-steps of 8 or less; the run has 9"),
    ):
        with pytest.raises(ConfigError, match=words):
            against(require, defenses="dp-sgd", **{key: value})
    with pytest.raises(ConfigError, match="dp-sgd.clip=1"):
        against({"require": "dp-sgd, clip=1"}, defenses="dp-sgd", **{"dp-sgd.clip": 0.5})


def test_a_budget_asks_for_an_epsilon_at_no_larger_a_delta() -> None:
    budget = {"epsilon-budget": 3.0}
    against(budget, defenses="dp-sgd")
    with pytest.raises(ConfigError, match="only with a defense with an ε; the run has dgp"):
        against(budget)
    with pytest.raises(ConfigError, match="privacy.delta of 1e-05 or less; the run has 0.001"):
        against(budget, defenses="dp-sgd", **{"privacy.delta": 1e-3})
    against({**budget, "delta": 1e-3}, defenses="dp-sgd", **{"privacy.delta": 1e-3})


@pytest.mark.parametrize(("own", "run", "holds"), [(0.0, 0.0, 0.0), (0.0, 2.0, 2.0), (3.0, 0.0, 3.0), (3.0, 2.0, 2.0)])
def test_the_smaller_budget_holds(own: float, run: float, holds: float) -> None:
    assert within(Policy(epsilon_budget=own), Privacy(epsilon_budget=run)).epsilon_budget == holds


@pytest.mark.parametrize("kind", ["query.hello", "train", "train.initial", "evaluate", "query.audit"])
def test_no_question_of_a_run_that_does_not_fit_is_answered(tmp_path: Path, kind: str) -> None:
    """The client whose owner asks for nothing answers the same question."""
    content = {"query.audit": question(torch.rand(4, 1, 8, 8))}.get(kind, model())
    run = {"evaluation": "clients", "defenses": "none"}
    assert send(tmp_path / "open", kind, content, **run).has_content()
    with pytest.raises(ConfigError, match="takes part only with the defenses dp-sgd"):
        send(tmp_path / "closed", kind, content, node={"require": "dp-sgd"}, **run)
    assert not (tmp_path / "closed").exists()


def test_the_owner_s_budget_stops_training_whatever_the_run_says(tmp_path: Path) -> None:
    run = {**RUN, "privacy.epsilon-budget": 1e6}
    spent = send(tmp_path / "a", "train", model(1), node={"client-seed": None}, **run).content["ledger"]["epsilon"]
    mine = {"epsilon-budget": 1.001 * spent, "client-seed": None}
    line = send(tmp_path / "b", "train", model(1), node=mine, **run).content["ledger"]
    assert line["epsilon_budget"] == pytest.approx(1.001 * spent) and line["epsilon_next"] > spent
    with pytest.raises(DefenseError, match="past"):
        send(tmp_path / "b", "train", model(2), node=mine, **run)
    send(tmp_path / "a", "train", model(2), node={"client-seed": None}, **run)


# ---- a required defense is required at its strength


@pytest.mark.parametrize(
    ("require", "run", "words"),
    [
        ("gaussian", {"gaussian.deviation": 1e-30}, "gaussian.deviation of 0.01 or more; the run has 1e-30"),
        ("dgp", {"dgp.top": 1e-9}, "dgp.top of 0.05 or more"),
        ("dgp, dgp.bottom=0.8", {"dgp.bottom": 0.7}, "dgp.bottom of 0.8 or more"),
        ("dp-sgd", {"dp-sgd.noise-multiplier": 1e-6}, "dp-sgd.noise-multiplier of 1.0 or more"),
        ("dp-sgd", {"dp-sgd.clip": 0.5}, "dp-sgd.clip=1.0; the run has 0.5"),
        ("channel-white", {"channel-white.kappa": 1e9}, "channel-white.kappa of 500.0 or less"),
        ("channel-natural", {"channel-natural.batch": 64}, "channel-natural.batch of 1 or less"),
        ("priprune", {"priprune.initial-alpha": 0.001}, "priprune.initial-alpha of 0.5 or more"),
        ("gaussian", {"local-steps": 9}, "local-steps of 8 or less, since gaussian works step by step; the run has 9"),
        ("channel-white", {"local-steps": 400}, "local-steps of 8 or less"),
        ("dp-sgd", {"local-steps": 400}, "local-steps of 8 or less"),
        ("gaussian, local-steps=4", {"local-steps": 8}, "local-steps=4"),
        ("leakage-guard", {"leakage-guard.psnr": 90.0}, "leakage-guard.psnr of 15.0 or less"),
        ("leakage-guard", {"leakage-guard.attack": "dlg"}, "leakage-guard.attack='sgi'; the run has dlg"),
    ],
)
def test_a_required_name_pins_the_settings_of_its_defense(require: str, run: dict[str, Any], words: str) -> None:
    name = require.partition(",")[0]
    with pytest.raises(ConfigError, match=words):
        against({"require": require}, defenses=name, **run)


def test_a_site_says_what_it_wants_instead_of_a_default_and_gets_at_least_that() -> None:
    for top in (0.01, 0.02, 0.1):
        against({"require": "dgp, dgp.top=0.01"}, **{"dgp.top": top})
    with pytest.raises(ConfigError, match="dgp.top of 0.01 or more"):
        against({"require": "dgp.top=0.01"}, **{"dgp.top": 0.009})
    box = "box:0,1,0,1"
    asked = {"require": f"channel-personalized, channel-personalized.importance='{box}', rounds=10"}
    against(asked, rounds=10, defenses="channel-personalized", **{"channel-personalized.importance": box})
    with pytest.raises(ConfigError, match="channel-personalized.importance='box:0,1,0,1'"):
        against(asked, rounds=10, defenses="channel-personalized")


def test_steps_are_free_where_noise_is_not_drawn_anew_at_each_or_an_epsilon_counts_them() -> None:
    against({"require": "dgp"}, **{"local-steps": 400})
    against({"require": "gaussian, local-steps=400"}, defenses="gaussian", **{"local-steps": 400})
    against({"require": "dp-sgd", "epsilon-budget": 3.0}, defenses="dp-sgd", **{"local-steps": 400})


def test_every_setting_of_every_defense_has_a_direction() -> None:
    assert all(name in SECTIONS or not directions(entry.settings) for name, entry in DEFENSES.items())
    for name, settings in SECTIONS.items():
        written = {f"{name}.{kebab(key)}" for key in directions(settings)}
        assert written == section_defaults(name, settings).keys(), name


PINNED = [(name, key) for name in DEFENSES if name in SECTIONS for key in directions(SECTIONS[name])]
OTHER = {"importance": "box:0,1,0,1", "attack": "ig"}
RULES = {Stronger.LARGER: ">", Stronger.SMALLER: "<", Stronger.EQUAL: ""}
FACTORS = (0.0, 1e-30, 0.5, 0.8, 0.999, 1.001, 1.3, 2.0, 1e30)


def moved(name: str, key: str, default: object) -> set[object]:
    """Other values of a setting than its default."""
    if isinstance(default, bool):
        return {not default}
    if isinstance(default, float | int):
        return {type(default)(factor * default) for factor in FACTORS} - {default}
    choices = (*get_args(get_type_hints(SECTIONS[name])[key]), OTHER.get(key, default))
    return {next(choice for choice in choices if choice != default)}


def builds(name: str, settings: dict[str, object]) -> bool:
    try:
        build_chain([name], settings)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize(("name", "key"), PINNED, ids=[f"{name}.{key}" for name, key in PINNED])
def test_a_setting_moves_in_its_strong_direction_only(name: str, key: str) -> None:
    """Read back from the words of the settings themselves, for every defense there is."""
    flat = f"{name}.{kebab(key)}"
    default = section_defaults(name, SECTIONS[name])[flat]
    tried = [(other, {"defenses": name, flat: other}) for other in moved(name, key, default)]
    valid = [(other, settings) for other, settings in tried if builds(name, settings)]
    assert valid, "settings that bound each other leave few values, and never none"
    for other, settings in valid:
        way = "" if isinstance(other, bool | str) else "<>"[other > default]
        if way and way == RULES[directions(SECTIONS[name])[key]]:
            against({"require": name}, **settings)
        else:
            with pytest.raises(ConfigError, match=f"takes part only with {flat}"):
                against({"require": name}, **settings)


# ---- what stands beside a required defense


@pytest.mark.parametrize(
    ("require", "defenses"),
    [
        ("dgp", "channel-natural,gaussian,dgp"),
        ("dgp", "dp-sgd,dgp"),
        ("dgp, mask-hiding", "dgp,mask-hiding"),
        ("dgp, gaussian", "gaussian,dgp"),
        ("gaussian", "gaussian,top-k"),
        ("gaussian, dgp, leakage-guard", "gaussian,dgp,leakage-guard"),
    ],
)
def test_defenses_of_other_stages_may_be_there(require: str, defenses: str) -> None:
    against({"require": require}, defenses=defenses)


@pytest.mark.parametrize(
    ("require", "defenses", "words"),
    [
        ("dgp", "top-k,dgp", "no update defense but dgp"),  # DGP's shares would be of the largest only
        ("dgp", "dgp,priprune", "no update defense but dgp"),  # whose mask would tell where DGP's largest are
        ("dgp", "adgp,dgp", "no update defense but dgp"),  # whose location set would name them
        ("dgp", "dgp,leakage-guard", "no update defense but dgp"),
        ("channel-white", "ats,channel-white", "no data defense but channel-white"),
        ("gaussian", "soteria,gaussian", "no gradient defense but gaussian"),
        ("gaussian", "gaussian,leakage-guard", "without leakage-guard"),
        ("dgp, top-k", "top-k,dgp", "the update defenses in the order dgp, top-k"),
    ],
)
def test_a_defense_that_could_undo_it_may_not(require: str, defenses: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        against({"require": require}, defenses=defenses)


@pytest.mark.parametrize(
    ("require", "run", "words"),
    [
        ("dgp.bottom=0.75", {"defenses": "none"}, "the defenses dgp"),
        ("dgp", {"evaluation": "clients"}, "evaluation=server"),
        ("rounds=10", {"evaluation": "clients"}, "evaluation=server"),
        ("dp-sgd", {"evaluation": "clients", "defenses": "dp-sgd"}, "evaluation=server"),
        ("dp-sgd", {"evaluation": "clients", "defenses": "dp-sgd", "privacy.validation-noise": 1e-9}, "evaluation"),
        ("dgp", {"strategy": "lotteryfl"}, "a strategy without scores of held-out examples"),
        ("gaussian", {"strategy": "lotteryfl", "defenses": "gaussian"}, "a strategy without scores"),
        ("dgp", {"strategy": "feddst"}, "a strategy whose clients send no masks"),
    ],
)
def test_a_run_that_would_tell_something_beside_the_defense_is_refused(
    require: str, run: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        against({"require": require}, rounds=10, **run)


def test_a_run_that_tells_what_a_defense_let_through_is_not() -> None:
    noisy = {"evaluation": "clients", "defenses": "dp-sgd", "privacy.validation-noise": 2.0}
    against({"require": "dp-sgd, privacy.validation-noise=2"}, **noisy)
    against({"epsilon-budget": 3.0}, **noisy)
    for name in ("gaussian", "dp-sgd", "channel-white"):
        against({"require": name}, defenses=name, strategy="feddst")
    against({"require": "dgp"}, strategy="prunefl")


@pytest.mark.parametrize(
    ("require", "defenses", "leaves"),
    [("dgp", "dgp", False), ("gaussian, dgp", "gaussian,dgp", False), ("dp-sgd", "dp-sgd", True), ("", "dgp", True)],
)
def test_squared_gradients_leave_only_if_the_required_defense_has_touched_them(
    tmp_path: Path, require: str, defenses: str, leaves: bool
) -> None:
    names, (params, _) = sorted(prunable(TASK.build())), initial(TASK, 0)
    asked = model(4, names, keep=0.5)
    _, mask = from_coded(asked["model"], params)
    content = send(tmp_path, "train", asked, {"require": require}, defenses=defenses, local_steps=2).content
    importance, _ = from_coded(content["importance"], {name: params[name] for name in names})
    assert any(bool(t.any()) for t in importance.values()) == leaves
    update, _ = from_coded(content["update"], params, mask)
    assert any(bool(t.any()) for t in update.values())


def test_no_first_mask_is_made_of_gradients_that_the_required_defense_has_not_touched(tmp_path: Path) -> None:
    params, _ = initial(TASK, 0)
    content = RecordDict({"model": to_coded(params, full_mask(params)), "config": ConfigRecord({"round": 0})})
    with pytest.raises(ConfigError, match="no mask of this client's making leave"):
        send(tmp_path / "a", "train.initial", content, {"require": "dgp"}, defenses="dgp", rate=0.5)
    assert not list((tmp_path / "a").rglob("round-*"))
    with pytest.raises(ConfigError, match="no mask of this client's making leave"):  # of any number of noisy steps
        send(tmp_path / "a", "train.initial", content, {"require": "gaussian"}, defenses="gaussian", rate=0.5)
    counted = {"require": "dp-sgd", "epsilon-budget": 100.0, "client-seed": None}
    for folder, node, defenses in (("b", counted, "dp-sgd"), ("c", {}, "dgp")):
        assert "mask" in send(tmp_path / folder, "train.initial", content, node, defenses=defenses, rate=0.5).content


@pytest.mark.parametrize(
    ("node", "defenses"),
    [({"require": "dgp"}, "dgp"), ({"require": "gaussian"}, "gaussian"), ({"epsilon-budget": 3.0}, "dp-sgd")],
)
def test_a_model_whose_buffers_would_leave_is_refused_at_once(
    tmp_path: Path, node: dict[str, Any], defenses: str
) -> None:
    with pytest.raises(ConfigError, match="a model without buffers .*; the run has resnet10"):
        send(tmp_path, "query.hello", RecordDict(), node, model="resnet10", defenses=defenses)
    send(tmp_path, "query.hello", RecordDict(), {}, model="resnet10", defenses=defenses)
    white = {"model": "resnet10", "defenses": "channel-white"}  # whatever is computed of its images is covered
    send(tmp_path, "query.hello", RecordDict(), {"require": "channel-white"}, **white)


def test_how_long_training_took_is_not_told(tmp_path: Path) -> None:
    assert set(send(tmp_path, "train", model(), {"require": "dgp"}, defenses="dgp").content["metrics"]) == {
        "num-examples"
    }
