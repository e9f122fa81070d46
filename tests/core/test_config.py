import dataclasses

import pytest
import torch

from prunella.core.config import Rate, Run, check_sections, parse_run, parse_section, section_defaults
from prunella.core.errors import ConfigError
from prunella.tasks.recommended import settled


@dataclasses.dataclass(frozen=True)
class Dual:
    top: Rate = 0.05
    bottom: Rate = 0.75

    def __post_init__(self) -> None:
        if self.top + self.bottom >= 1:
            raise ConfigError("dgp.top and dgp.bottom must leave something to send")


def test_the_rate_is_settled_before_settings_are_parsed() -> None:
    raw = {"learning-rate": "auto"}
    assert parse_run(settled(raw)) == Run()
    with pytest.raises(ConfigError, match="learning-rate"):
        parse_run(raw)


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_rate_is_in_zero_to_one(rate: float) -> None:
    with pytest.raises(ConfigError, match="rate"):
        parse_run({"rate": rate})


def test_an_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'learning-rate'"):
        parse_run({"learnin-rate": 1.0})


def test_a_wrong_type_names_the_setting() -> None:
    with pytest.raises(ConfigError, match="rounds: .*integer"):
        parse_run({"rounds": "many"})


def test_a_rate_that_vanishes_before_the_last_round_is_refused() -> None:
    assert Run(learning_rate_decay=0.1, rounds=300).rate_in(300) > 0
    with pytest.raises(ConfigError, match="^learning-rate-decay: nothing is left of the rate in round 400"):
        parse_run({"learning-rate-decay": 0.1, "rounds": 400})


def test_the_rate_falls_along_half_a_cosine_to_the_horizon_whatever_the_rounds() -> None:
    falling = {rounds: Run(learning_rate=0.4, learning_rate_horizon=12, rounds=rounds) for rounds in (4, 12)}
    assert falling[4].rate_in(1) == 0.4 and falling[4].rate_in(7) == pytest.approx(0.2)
    assert falling[4].rate_in(5) == falling[12].rate_in(5) == pytest.approx(0.3)  # cos(pi / 3) is a half
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
    for round in range(1, 13):
        assert falling[12].rate_in(round) == pytest.approx(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    both = Run(learning_rate=0.4, learning_rate_horizon=12, learning_rate_decay=0.5)
    assert both.rate_in(5) == pytest.approx(0.3 * 0.5**4)
    with pytest.raises(ConfigError, match="^learning-rate-horizon: .*in round 4: choose at least the rounds, 5"):
        parse_run({"learning-rate-horizon": 3, "rounds": 5})


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Run().rounds = 3  # type: ignore[misc]


def test_sections_parse_into_their_dataclass() -> None:
    assert parse_section({"dgp.top": 0.1, "rounds": 3}, "dgp", Dual) == Dual(top=0.1)
    assert section_defaults("dgp", Dual) == {"dgp.top": 0.05, "dgp.bottom": 0.75}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"dgp.tpo": 0.1}, "did you mean 'dgp.top'"),
        ({"dgp.top": 2.0}, "dgp.top"),
        ({"dgp.top": 0.5}, "^dgp.*leave something"),
        ({"dpg.top": 0.5}, "did you mean 'dgp'"),
    ],
)
def test_section_mistakes_are_named(raw: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_sections(raw, {"dgp": Dual})


def test_defenses_are_an_ordered_list() -> None:
    assert Run(defenses=" channel-natural, dgp ").defense_names == ("channel-natural", "dgp")
    assert Run(defenses="").defense_names == ("none",)


def test_the_first_and_the_last_round_are_audited_and_every_so_many_between() -> None:
    """A run that audits trained weights alone may read clear where a picture left in its first round."""
    rounds, rates = range(1, 11), (0, 1, 4, 10, 99)
    every = {rate: [r for r in rounds if Run(rounds=10, audit_every=rate).audits(r)] for rate in rates}
    assert every == {0: [], 1: [*range(1, 11)], 4: [1, 4, 8, 10], 10: [1, 10], 99: [1, 10]}
    assert Run(rounds=1).audits(1)
