"""The adapted attacks' benchmark: what it attacks is what a client sends; the figures themselves are in docs."""

import json
import sys
from pathlib import Path

import pytest
import torch

from prunella.attacks import ggl, rog
from prunella.benchmarks.papers import adapted as bench
from prunella.core.randomness import stream
from prunella.core.trees import density
from prunella.core.types import PrivateBatch
from prunella.tasks.data import Examples, Partition, load_client, load_test
from prunella.tasks.task import Task


def digits() -> bench.Bench:
    train = load_client("digits", Partition("iid", clients=1), 0, None)
    return bench.Bench(Task("cnn", (1, 8, 8), 10), train, 1)


def tiny(task: Task, train: Examples, folder: Path) -> dict[str, str]:
    draw = stream(0, purpose="prior")
    few = PrivateBatch(train.x[:64], train.y[:64])
    ggl.save(folder / "ggl.safetensors", ggl.train(few, 10, draw, epochs=1, latent=4, width=16))
    rog.save(folder / "rog.safetensors", rog.train(few.x, draw, epochs=1, width=4))
    return {name: str(folder / f"{name}.safetensors") for name in ("ggl", "rog")}


def test_the_last_line_is_one_json_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "learn", tiny)
    arguments = ["adapted", "--json", "--images", "2", "--iterations", "1", "--cache", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*arguments, "--parts", "priprune", "learnt"])
    bench.main()
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    figures = result["parts"]["learnt"]["figures"]
    assert set(figures) == {"mean"} | {f"{name} {arm}" for name in ("sgi", "ggl", "rog") for arm in bench.ARMS}
    assert 0 < min(result["parts"]["priprune"]["figures"]["share sent"]) < 1
    bench.show("learnt", result["parts"]["learnt"])
    assert "ggl noise 8 above mean" in capsys.readouterr().out
    monkeypatch.setattr(bench, "learnt", lambda *a: pytest.fail("measured again"))
    bench.main()
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["parts"]["learnt"]["figures"] == figures


def test_rounds_follow_what_was_sent_and_feed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every later view starts where the one before led, and brings coordinates that were owed."""
    seen: dict[str, list] = {}

    def note(given, name, view, image, **more):  # noqa: ANN001, ANN202
        seen[name] = [*more.get("earlier", ()), view]
        return torch.zeros(1, 1, 8, 8)

    monkeypatch.setattr(bench, "attacked", note)
    test = load_test("digits", None)
    bench.rounds(digits(), PrivateBatch(test.x[:1], test.y[:1]), 0)
    views = seen["unrolling"]
    assert len(views) == bench.ROUNDS and seen["sgi"] == views[-1:]
    for before, after in zip(views, views[1:], strict=False):
        for name, start in after.params.items():
            torch.testing.assert_close(start, before.params[name] + before.update[name])
    sent = [torch.cat([(u != 0).flatten() for u in view.update.values()]) for view in views]
    assert all(0.1 < float(s.float().mean()) < 0.3 for s in sent)
    assert float((sent[0] & sent[1]).float().mean()) < float(sent[0].float().mean()), "others than in the first round"


def test_arms_are_what_they_are_called() -> None:
    test = load_test("digits", None)
    view = bench.undefended(digits(), PrivateBatch(test.x[:1], test.y[:1]), 0)
    shares = {arm: density(bench.behind(view, arm, 0).shared) for arm in bench.ARMS}
    assert shares == {
        "none": 1.0,
        "top 2 %": pytest.approx(0.02, abs=0.002),
        "dgp": pytest.approx(0.2, abs=0.01),
        "noise 2": 1.0,
        "noise 8": 1.0,
    }
    name = max(view.update, key=lambda n: view.update[n].numel())
    for level in (2, 8):
        noise = bench.behind(view, f"noise {level}", 0).update[name] - view.update[name]
        assert float(noise.std() / view.update[name].std()) == pytest.approx(level, rel=0.05)


def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["adapted", "--images", "1"])
    with pytest.raises(SystemExit):
        bench.main()
