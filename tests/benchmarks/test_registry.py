"""Every claim and table under its own name, once, with cells that can be made."""

from pathlib import Path

import pytest
import torch

from prunella.attacks import find_attack
from prunella.benchmarks.engine.cells import Cache
from prunella.benchmarks.engine.claim import SIZES
from prunella.benchmarks.engine.measuring import Plan, RunLimits
from prunella.benchmarks.engine.views import model_of
from prunella.benchmarks.papers.defended import TRAINING
from prunella.benchmarks.registry import CLAIMS, PAPERS, TABLES
from prunella.benchmarks.scenarios.meeting import STRONG
from prunella.core.errors import ConfigError
from prunella.privacy.chain import build_chain
from prunella.tasks.data import make_task

EVERY = {**CLAIMS, **TABLES}
NO_ATTACK = {TRAINING, STRONG}  # what cells of training, and the board's, have in place of one


def test_names_are_those_of_the_claims_and_no_two_are_alike() -> None:
    every = [claim.name for paper in PAPERS for claim in paper.CLAIMS] + [table.name for table in TABLES.values()]
    assert len({name.casefold() for name in every}) == len(every) == len(CLAIMS) + len(TABLES)
    assert all(name == claim.name for name, claim in {**CLAIMS, **TABLES}.items()) and "board" in TABLES


@pytest.mark.parametrize("size", SIZES)
def test_all_cells_of_a_size_can_be_listed_kept_and_put_in_order(size: str, tmp_path: Path) -> None:
    chosen = {name: claim.experiment for name, claim in EVERY.items() if size in claim.sizes()}
    assert len(chosen) > 25 and "board" in chosen and "X1" in chosen
    plan, cache = Plan(chosen, size, Cache(tmp_path, 1)), Cache(tmp_path, 1)
    paths = {cache.path(cell.about(experiment)) for cell, experiment in plan.cells.values()}
    assert len(paths) == len(plan.cells)
    order = {key: place for place, key in enumerate(plan.following(RunLimits()))}
    assert order.keys() == plan.cells.keys()
    assert all(order[control] <= order[key] for key, control in plan.controls.items())


def checked(settings: dict[str, object]) -> None:
    """What a cell names is here: data set, model, chain and its settings, attack."""
    chain = str(settings.get("defenses", "none")).split(",")
    build_chain(chain, dict(settings.get("raw") or {}))  # type: ignore[call-overload]
    if {"dataset", "model"} <= settings.keys():
        with torch.device("meta"):
            make_task(model_of(str(settings["model"]), chain), str(settings["dataset"]), None).build()
    attacks = settings.get("attack", ())
    for name in (attacks,) if isinstance(attacks, str) else attacks:  # type: ignore[attr-defined]
        if name not in NO_ATTACK:
            find_attack(name)


@pytest.mark.parametrize("name", [name for name, claim in EVERY.items() if "paper" in claim.sizes()])
def test_what_a_paper_cell_names_is_here(name: str) -> None:
    cells = EVERY[name].experiment.sweeps["paper"].cells
    named = {str([cell.get(key) for key in ("dataset", "model", "defenses", "raw", "attack")]): cell for cell in cells}
    for cell in named.values():
        checked(cell)


def test_what_is_not_here_is_found() -> None:
    for wrong in ({"defenses": "dpg"}, {"attack": "igg"}, {"dataset": "mnst", "model": "cnn"}):
        with pytest.raises(ConfigError):
            checked(dict(wrong))
