"""What is fitted on a client's images is of the images that it is used on, whatever a server asked for before."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from prunella.client.session import Session
from prunella.core.errors import ConfigError
from prunella.core.randomness import PrivateGenerator
from prunella.core.trees import Tree
from prunella.privacy.chain import Chain, ChainState, build_chain, fit, present, start
from prunella.tasks.task import Task, initial
from tests.redteam.site import Site, model

FORMS = {"size": {"dataset": "imagefolder@1x1x64"}, "split": {"evaluation": "clients"}, "same": {}}


def same(one: Tree, other: Tree) -> bool:
    return all(one[n].shape == other[n].shape and torch.allclose(one[n], other[n]) for n in other)


@pytest.mark.parametrize("name", ["channel-natural", "channel-white", "channel-personalized"])
@pytest.mark.parametrize("form", FORMS)
def test_a_channel_is_fitted_on_the_images_that_it_is_used_on(
    name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has it fitted on another form of the images, or on a part of them, under the same name of a run,
    would get other noise than kappa asks for."""
    used, fits = list[Tree](), list[Tensor]()

    def seen(chain: Chain, batch: Tensor, state: ChainState, generator: PrivateGenerator) -> Tensor:
        used.append(state[name]["channel"])
        return present(chain, batch, state, generator)

    def counted(defense: Any, x: Tensor, *rest: Any) -> Any:
        fits.append(x)
        return fit(defense, x, *rest)

    monkeypatch.setattr("prunella.privacy.chain.fit", counted)
    monkeypatch.setattr("prunella.strategies.round.local.present", seen)
    site, shape = Site(tmp_path, 80), (1, 1, 64) if form == "size" else (1, 8, 8)
    chosen: dict[str, Any] = {"model": "cnn", "defenses": name, "batch_size": 8}
    chosen[f"{name.replace('-', '_')}__kappa"] = 1.0
    params, others = (initial(Task("cnn", each, 3), 0)[0] for each in ((1, 8, 8), shape))
    site.ask("train", model(others, 1), **{**chosen, **FORMS[form]})
    for round in (2, 3):
        site.ask("train", model(params, round), **chosen)
    assert len(fits) == (1 if form == "same" else 2), "it is fitted once for each form"
    images, draws = Session(site.context(**chosen)).data.examples.x, PrivateGenerator(bytes(32))
    wanted = start(build_chain([name], {f"{name}.kappa": 1.0}), images, params, {}, draws)[name]["channel"]
    assert len(used) == 3 and same(used[1], wanted) and same(used[2], wanted)
    assert same(used[0], wanted) is (form == "same")


def test_the_server_reads_no_file_of_a_client_s_as_a_channel_s_map(tmp_path: Path) -> None:
    """Neither its pixels, by the noise, nor its shape or that it is there, by an error."""
    np.save(tmp_path / "elsewhere.npy", np.ones((8, 8)))
    np.save(tmp_path / "mine.npy", np.ones((8, 8)))
    chosen: dict[str, Any] = {"model": "cnn", "defenses": "channel-personalized"}
    params = initial(Task("cnn", (1, 8, 8), 3), 0)[0]
    told = set[str]()
    for own in ({}, {"importance": str(tmp_path / "mine.npy")}):
        site = Site(tmp_path / str(len(own)), 20, **own)
        for name in ("elsewhere.npy", "missing.npy", "data"):
            with pytest.raises(ConfigError) as caught:
                site.ask("train", model(params), **chosen, channel_personalized__importance=str(tmp_path / name))
            told.add(str(caught.value))
    assert len(told) == 1
    assert "update" in site.ask("train", model(params), **chosen, channel_personalized__importance="site")
