"""The table of defenses: cells are made once, controls are counted, a failed attack is no zero."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import prunella.client.app
import prunella.client.session
from prunella.attacks import ATTACKS
from prunella.benchmarks.papers import leakage as bench
from prunella.core.errors import ConfigError, DefenseError
from prunella.privacy import DEFENSES
from prunella.tasks.data import Partition

OWN = ATTACKS["sgi"]  # somebody's own is asked for by its import path
SMALL = ["--dataset", "digits", "--defenses", "dgp", "--images", "2", "--iterations", "40", "--clients", "2"]
SMALL += ["--rounds", "1", "--steps", "1", "--batch", "8"]


def test_every_defense_has_a_row() -> None:
    assert set(DEFENSES) <= {name for chain in bench.CHAINS for name in chain.split(",")}
    for chain in bench.CHAINS:
        bench.build_chain(chain.split(","), {})
    with pytest.raises(ConfigError):
        bench.build_chain(["dgp", "ats"], {})


def test_clients_can_be_given_their_first_examples_only() -> None:
    asked = ("digits", Partition("iid", clients=2, seed=0), 0, None)
    whole = prunella.client.session.load_client(*asked)
    with bench.data_kept(7):
        few = prunella.client.session.load_client(*asked)
    assert len(few) == 7 and torch.equal(few.x, whole.x[:7]) and torch.equal(few.y, whole.y[:7])
    with bench.data_kept():
        assert len(prunella.client.session.load_client(*asked)) == len(whole)


def test_a_second_run_takes_every_cell_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["leakage", "--json", "--cache", str(tmp_path), *SMALL])
    bench.main()
    torch.set_num_threads(threads)
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = {row["defenses"]: row for row in first["rows"]}
    assert list(rows) == ["none", "dgp"] and rows["none"]["sgi"]["control"] == 2
    assert rows["none"]["sgi"]["psnr"]["mean"] > rows["dgp"]["ig"]["psnr"]["mean"]
    assert rows["dgp"]["federation"]["megabytes_up"] < 0.6 * rows["none"]["federation"]["megabytes_up"]

    def refuse(*arguments: Any) -> Any:
        raise AssertionError("computed again")

    for name in ("federation", "seconds", "attacked"):
        monkeypatch.setattr(bench, name, refuse)
    bench.main()
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["rows"] == first["rows"]
    heads, made = bench.lines(first["rows"], ["ig", "sgi"])
    assert bench.markdown(heads, made).count("\n") == 3 and "2/2, 2/2" in made[1][-1]
    monkeypatch.setattr(sys, "argv", ["leakage", "--cache", str(tmp_path), *SMALL, "--seed", "1"])
    with pytest.raises(AssertionError, match="computed again"):  # another seed is another cell
        bench.main()
    torch.set_num_threads(threads)


def test_an_attack_that_fails_is_counted_and_not_scored() -> None:
    good = {"psnr": 30.0, "ssim": 0.9, "psnr_shown": 30.0, "ssim_shown": 0.9}
    found = bench.summary([good, {"failed": "nothing arrived"}], [good, {**good, "psnr": 12.0}])
    assert found["control"] == 1 and found["failed"] == 1 and found["psnr"]["images"] == 1
    empty = bench.summary([{"failed": "nothing arrived"}], [good])
    assert bench.cell_text(empty, "psnr") == "nothing arrived"


def test_zhus_network_is_attacked_with_its_own_settings() -> None:
    found = {name: bench.attack_settings(name, "cnn", 7, lambda: {"rog": "here"}) for name in ("sgi", "rog")}
    assert bench.attack_settings("ig", "lenet-zhu", 7, dict).optimizer == "lbfgs"
    assert (found["sgi"].optimizer, found["sgi"].iterations, found["rog"].prior) == ("auto", 7, "here")
    assert bench.attack_settings(f"{__name__}:OWN", "cnn", 7, dict).iterations == 7


def test_a_federation_in_which_every_client_withholds_is_named_and_has_no_accuracy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def not_finite(*arguments: Any) -> Any:
        raise DefenseError("chain: gradient is not finite")

    chosen = bench.options([*SMALL, "--rounds", "3"])
    assert "accuracy" in bench.federation(chosen, "dgp")
    monkeypatch.setattr(prunella.client.app, "local_update", not_finite)
    fed = bench.federation(chosen, "dgp")
    assert list(fed) == ["failed"] and "no valid reply in 3 rounds, last: client-error" in fed["failed"]
    row = {"defenses": "dgp", "federation": fed, "seconds": {"ratio": 1.0}}
    assert bench.lines([row], [])[1][0][1:4] == ["withheld", "–", "–"]
