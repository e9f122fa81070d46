"""What a site requires of an app that is not Prunella's."""

import pytest
from flwr.app import Context, RecordDict

from prunella.client.policy import read_policy
from prunella.core.errors import ConfigError
from prunella.flower.site import Site, check_conditions, read_names, strengthened


def site(tmp_path, config, **node) -> Site:
    return Site(Context(7, 1, {"partition-id": 0, "state-dir": str(tmp_path), **node}, RecordDict(), config), "train")


def test_required_defenses_are_added_by_stage() -> None:
    policy = read_policy({"require": "gaussian"})
    assert read_names({"defenses": "dgp"}, policy) == ("gaussian", "dgp")
    assert read_names({"defenses": "none"}, policy) == read_names({}, policy) == ("gaussian",)
    assert read_names({"defenses": "none"}, read_policy({})) == ("none",)


@pytest.mark.parametrize(
    ("asked", "own", "wins"), [(0.5, 0.9, 0.9), (0.9, 0.5, 0.9), (0.75, 0.75, 0.75)], ids=["site", "run", "equal"]
)
def test_the_larger_share_wins_where_larger_is_stronger(asked: float, own: float, wins: float) -> None:
    found = strengthened({"dgp.bottom": asked}, read_policy({"require": f"dgp.bottom={own}"}))
    assert found["dgp.bottom"] == wins and found["dgp.top"] == 0.05


def test_the_smaller_bound_wins_where_smaller_is_stronger_and_the_site_s_where_neither_is() -> None:
    for asked, own in ((0.5, 0.1), (0.1, 0.5)):
        assert strengthened({"top-k.keep": asked}, read_policy({"require": f"top-k.keep={own}"}))["top-k.keep"] == 0.1
    assert strengthened({"dp-sgd.clip": 0.5}, read_policy({"require": "dp-sgd.clip=2.0"}))["dp-sgd.clip"] == 2.0


def test_what_the_site_compares_has_the_direction_it_says() -> None:
    policy = read_policy({"require": "dp-sgd, clip<=1"})
    for asked, wins in ((0.5, 0.5), (2.0, 1.0)):
        assert strengthened({"dp-sgd.clip": asked}, policy)["dp-sgd.clip"] == wins


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"require": "local-steps=4"}, "no defense"),
        ({"require": "dgp, rounds=10"}, "no app but Prunella's own"),
        ({"require": "leakage-guard"}, "docs/choose.md"),
        ({"epsilon-budget": 3.0}, "require dp-sgd, too"),
        ({"require": "dgp", "epsilon-budget": 3.0}, "require dp-sgd, too"),
    ],
)
def test_conditions_that_no_app_of_others_can_meet_are_told_at_the_start(node, words: str) -> None:
    check_conditions(read_policy({"require": "dp-sgd, clip<=1", "epsilon-budget": 3.0}))
    with pytest.raises(ConfigError, match=words):
        check_conditions(read_policy(node))


def test_conditions_of_masked_sums_are_met_by_no_single_update(tmp_path) -> None:
    with pytest.raises(ConfigError, match="single updates"):
        site(tmp_path, {"defenses": "dgp"}, **{"sum-least": 5}).chain  # noqa: B018


def test_a_setting_that_is_no_number_is_not_stronger(tmp_path) -> None:
    with pytest.raises(ConfigError):
        site(tmp_path, {"defenses": "dgp", "dgp.bottom": float("nan")}, require="dgp").chain  # noqa: B018


def test_few_steps_average_no_noise_away(tmp_path) -> None:
    required = site(tmp_path, {"defenses": "gaussian"}, require="gaussian, local-steps=3")
    assert required.chain.names == ("gaussian",)
    required.require_few(3)
    with pytest.raises(ConfigError, match="3 local steps"):
        required.require_few(4)
    site(tmp_path, {"defenses": "gaussian"}).require_few(10_000)


def test_the_app_s_other_settings_are_its_own_affair(tmp_path) -> None:
    config = {"defenses": "dgp", "num-server-rounds": 3, "lr": 0.1, "optimizer.name": "adam"}
    assert site(tmp_path, config).chain.names == ("dgp",)


def test_under_an_epsilon_no_metric_leaves(tmp_path) -> None:
    assert site(tmp_path, {"defenses": "dgp"}).metrics(("loss",)) == {"loss"}
    assert site(tmp_path, {"defenses": "dp-sgd"}, metrics="loss").metrics(("loss",)) == frozenset()
    assert site(tmp_path, {"defenses": "dgp"}, require="dgp").metrics(("loss",)) == frozenset()
    assert site(tmp_path, {"defenses": "dgp"}, require="dgp", metrics="a, b").metrics(()) == {"a", "b"}


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("epsilon-budget", "privacy.epsilon-budget"),
        ("epsilon_budget", "privacy.epsilon-budget"),
        ("privacy.epsilon_budget", "privacy.epsilon-budget"),
        ("dp_sgd.clip", "dp-sgd.clip"),
        ("Privacy.Epsilon_Budget", "privacy.epsilon-budget"),
        ("defense", "defenses"),
        ("Defences", "defenses"),
        ("dgp-top", "dgp.top"),
    ],
)
def test_a_setting_that_nobody_would_hear_of_is_refused(key: str, meant: str, tmp_path) -> None:
    with pytest.raises(ConfigError, match=f"write {meant}"):
        site(tmp_path, {"defenses": "dgp", key: 3.0}).chain  # noqa: B018
    assert site(tmp_path, {"defenses": "dgp", "clip": 3.0, "my.clip": 1, "delta": 2}).chain.names == ("dgp",)
