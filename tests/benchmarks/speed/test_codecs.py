"""Every arm returns what it was given; a public codec takes part where it is installed and is named where it is not."""

import json

import numpy as np
import pytest
import torch

from prunella.benchmarks.speed import codecs
from prunella.benchmarks.speed.updates import Update, examples, real_update
from prunella.benchmarks.speed.wire import gaussian
from prunella.wire.layout import FRAME
from tests.benchmarks.speed.test_updates import QUICK

PLAIN = codecs.ValueCoder(lambda values: values.tobytes(), lambda data, size: np.frombuffer(data, np.int32, size))


def update() -> Update:
    return gaussian({"a": torch.zeros(3, 5), "b": torch.zeros(FRAME + 7), "c": torch.zeros(())}, 0.8, 1)


@pytest.mark.parametrize("coder", [codecs._ours(), PLAIN], ids=["ours", "plain"])
def test_a_message_comes_back_bit_for_bit(coder: codecs.ValueCoder) -> None:
    one = update()
    one.update["b"][one.shared["b"]] *= -0.0  # a zero has a sign
    tree, mask = codecs.taken_apart(coder, codecs.composed(coder, one.update, one.shared), one.update)
    assert all(torch.equal(mask[name], one.shared[name]) for name in mask)
    assert all(np.array_equal(tree[n].numpy().view(np.int32), one.update[n].numpy().view(np.int32)) for n in tree)


def test_values_are_gathered_in_the_order_of_the_names() -> None:
    one = update()
    kept = [one.update[name][one.shared[name]].flatten() for name in sorted(one.update)]
    assert np.array_equal(codecs.gathered(one.update, one.shared), torch.cat(kept).numpy().view(np.int32))


@pytest.mark.parametrize("name", codecs.PEERS)
def test_a_public_codec_returns_the_values(name: str) -> None:
    package, make = codecs.PEERS[name]
    pytest.importorskip(package)
    values = codecs.gathered(update().update, update().shared)
    coder = make()
    assert np.array_equal(coder.decode(coder.encode(values), values.size), values)


def test_bytes_are_counted_against_the_bound() -> None:
    images, _ = examples(None, 1)
    found = codecs.measure(
        real_update("vgg-4", "magnitude", images, QUICK), {codecs.OURS: codecs._ours(), "x": PLAIN}, 1
    )
    assert found[codecs.OURS]["of_bound"] < found["x"]["of_bound"] == pytest.approx(1.0, abs=0.02)
    speed = found["x"]["of_memcpy"]["encode"]
    assert 0 < speed["least"] == speed["median"] == speed["most"]


def test_an_arm_that_changes_a_value_is_no_result() -> None:
    wrong = codecs.ValueCoder(PLAIN.encode, lambda data, size: PLAIN.decode(data, size) + 1)
    with pytest.raises(ValueError, match="x: the round trip is not exact"):
        codecs.measure(update(), {codecs.OURS: codecs._ours(), "x": wrong}, 1)


def test_without_the_public_codecs_ours_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(codecs, "importable", lambda packages: set())
    options = type("Options", (), {"kind": "dgp", "data": None, "seed": 1, "model": "cnn", "repeat": 1})
    threads = torch.get_num_threads()
    result = json.loads(json.dumps(codecs.compare(options)))
    torch.set_num_threads(threads)
    assert list(result["arms"]) == [codecs.OURS] and result["images"] == "synthetic"
    codecs.show(result)
    assert codecs.OURS in capsys.readouterr().out


def test_the_peers_are_those_that_pip_can_install() -> None:
    assert {package for package, _ in codecs.PEERS.values()} == set(codecs.PACKAGES)
