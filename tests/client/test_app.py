"""What a client's messages hold, against the allow-list, on real handlers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from PIL import Image

from prunella.attacks.fishing import plant
from prunella.client.app import app
from prunella.core.errors import ConfigError, DataError, DefenseError, WireError
from prunella.core.trees import apply_mask, full_mask
from prunella.tasks.data import load_client
from prunella.tasks.task import Task, initial, prunable
from prunella.wire.records import from_coded, mask_from_coded, record_bytes, to_coded, to_dense
from tests.local_grid import settings

TASK = Task("cnn", (1, 8, 8), 10)


def send(
    tmp_path: Path,
    kind: str,
    content: RecordDict,
    node: dict[str, Any] | None = None,
    state: RecordDict | None = None,
    **overrides: Any,
) -> Message:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    config = {"partition-id": 0, "num-partitions": 4, "state-dir": str(tmp_path), "client-seed": 1, **(node or {})}
    config = {key: value for key, value in config.items() if value is not None}  # so a test takes one away
    message = Message(content, dst_node_id=5, message_type=kind)
    kept = RecordDict() if state is None else state
    return app(message, Context(1, 5, config, kept, settings(**{"run_dir": "/x/run", **overrides})))


def model(round: int = 1, importance: list[str] | None = None, keep: float = 1.0) -> RecordDict:
    params, _ = initial(TASK, 0)
    g = torch.Generator().manual_seed(0)
    mask = {n: (torch.rand(p.shape, generator=g) < keep) | (p.dim() < 2) for n, p in params.items()}
    config = ConfigRecord({"round": round, "importance": importance or []})
    return RecordDict({"model": to_coded(apply_mask(params, mask), mask), "config": config})


def test_a_train_reply_holds_what_is_allowed_and_nothing_else(tmp_path: Path) -> None:
    content = send(tmp_path, "train", model(), defenses="dgp").content
    assert set(content) == {"update", "spoken", "metrics", "provenance", "ledger"}
    assert set(content["metrics"]) == {"num-examples", "train-seconds"}
    assert set(content["provenance"]) == {"round", "mask", "applied", "values"}
    assert set(content["ledger"]) <= {
        "rounds",
        "steps",
        "claims",
        "channel_nats",
        "epsilon",
        "epsilon_next",
        "epsilon_budget",
        "delta",
    }
    assert content["provenance"]["applied"] == ["dgp"]


@pytest.mark.parametrize(("values", "share"), [("float16", 0.6), ("int8", 0.35)])
def test_values_are_rounded_where_the_run_says_so(tmp_path: Path, values: str, share: float) -> None:
    params, _ = initial(TASK, 0)
    exact, rounded = (
        send(tmp_path / kind, "train", model(), defenses="none", values=kind).content for kind in ("float32", values)
    )
    assert (exact["provenance"]["values"], rounded["provenance"]["values"]) == ("float32", values)
    assert record_bytes(rounded["update"]) < share * record_bytes(exact["update"])
    told, _ = from_coded(rounded["update"], params, full_mask(params))
    for tensor in told.values():
        assert len(tensor.unique()) <= (255 if values == "int8" else 2**15)


def test_importance_leaves_only_when_asked_and_only_of_prunable_weights(tmp_path: Path) -> None:
    names = sorted(prunable(TASK.build()))
    content = send(tmp_path, "train", model(4, [*names, "0.0.bias", "labels"]), defenses="none").content
    assert set(content) == {"update", "metrics", "provenance", "ledger", "importance"}
    like = {name: initial(TASK, 0)[0][name] for name in names}
    tree, _ = from_coded(content["importance"], like)
    assert all(bool((t >= 0).all()) for t in tree.values())


@pytest.mark.parametrize(("round", "strategy"), [(3, "prunefl"), (4, "random")])
def test_importance_does_not_leave_in_other_rounds_or_schemes(tmp_path: Path, round: int, strategy: str) -> None:
    asked = model(round, sorted(prunable(TASK.build())))
    assert "importance" not in send(tmp_path, "train", asked, defenses="none", strategy=strategy).content


def test_evaluation_is_refused_in_a_run_that_does_not_evaluate_on_clients_and_rationed_in_one_that_does(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="evaluation=clients"):
        send(tmp_path, "evaluate", model())
    for _ in range(2):
        send(tmp_path, "evaluate", model(), evaluation="clients")
    with pytest.raises(ConfigError, match="answers no more"):
        send(tmp_path, "evaluate", model(), evaluation="clients")


def test_hello_tells_number_and_consent(tmp_path: Path) -> None:
    hello = send(tmp_path, "query.hello", RecordDict(), {"audit": "scores"}).content["hello"]
    assert dict(hello) == {"client": 0, "audit": "scores"}


def test_hello_raises_where_model_or_data_are_missing_or_the_classes_are_others(tmp_path: Path) -> None:
    for name in ("cats", "dogs"):
        (tmp_path / "mine" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "mine" / name / "1.png")
    own = {"node": {"data": str(tmp_path / "mine")}, "dataset": "imagefolder:/centre"}

    def asked(*classes: str) -> RecordDict:
        return RecordDict({"hello": ConfigRecord({"classes": list(classes)})})

    assert "hello" in send(tmp_path, "query.hello", asked("cats", "dogs"), **own).content
    with pytest.raises(DataError, match="classes are not the server's"):
        send(tmp_path, "query.hello", asked("cats", "dogs", "emus"), **own)
    (tmp_path / "mine" / "dogs" / "1.png").write_bytes(b"broken")
    with pytest.raises(DataError, match="pictures cannot be read"):
        send(tmp_path, "query.hello", asked("cats", "dogs"), **own)
    with pytest.raises(DataError, match="no readable folder"):
        send(tmp_path, "query.hello", asked(), node={"data": str(tmp_path / "typo")}, dataset="imagefolder")
    with pytest.raises(ConfigError, match="cannot be imported here"):
        send(tmp_path, "query.hello", RecordDict(), model="not_installed.net:build")


def test_hello_raises_where_the_release_here_recommends_another_learning_rate(tmp_path: Path) -> None:
    def asked(rate: float) -> RecordDict:
        return RecordDict({"hello": ConfigRecord({"learning-rate": rate})})

    assert "hello" in send(tmp_path, "query.hello", asked(0.25)).content
    with pytest.raises(ConfigError, match="trains at learning-rate 0.25 where the server's says 0.1: name a number"):
        send(tmp_path, "query.hello", asked(0.1))


def test_initial_pruning_answers_with_a_mask_inside_the_limit(tmp_path: Path) -> None:
    params, _ = initial(TASK, 0)
    content = RecordDict({"model": to_coded(params, full_mask(params)), "config": ConfigRecord({"round": 0})})
    reply = send(tmp_path, "train.initial", content, strategy="prunefl", rate=0.5).content
    assert list(reply) == ["mask", "ledger"]
    mask = mask_from_coded(reply["mask"], params)
    kept = sum(int(mask[n].sum()) for n in prunable(TASK.build()))
    assert 0 < kept <= 0.5 * sum(params[n].numel() for n in prunable(TASK.build()))


def test_no_first_mask_is_made_for_a_scheme_without_one(tmp_path: Path) -> None:
    params, _ = initial(TASK, 0)
    content = RecordDict({"model": to_coded(params, full_mask(params)), "config": ConfigRecord({"round": 0})})
    with pytest.raises(ConfigError, match="no client makes the first mask with strategy=snip"):
        send(tmp_path, "train.initial", content, strategy="snip", rate=0.5)
    assert not list(tmp_path.rglob("round-*"))


def test_a_strategy_of_another_release_is_refused_before_anything_is_charged(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'snip'"):
        send(tmp_path, "train", model(), strategy="snp")
    assert not list(tmp_path.rglob("account*"))


def test_evaluation_tells_loss_accuracy_and_count(tmp_path: Path) -> None:
    reply = send(tmp_path, "evaluate", model(), evaluation="clients").content
    assert list(reply) == ["metrics"]
    assert set(reply["metrics"]) == {"num-examples", "loss", "accuracy"}


@pytest.mark.parametrize(
    ("content", "overrides", "words"),
    [
        (lambda: RecordDict({"config": ConfigRecord({"round": 1})}), {}, "KeyError: this client's own log"),
        (model, {"defenses": "pripune"}, "did you mean 'priprune'"),
        (model, {"model": "cn"}, "did you mean 'cnn'"),
        (model, {"dataset": "digit"}, "did you mean 'digits'"),
        (model, {"rate": 1.0}, "rate"),
        (model, {"model": "conv-1"}, "model"),
    ],
)
def test_an_error_says_what_is_wrong_and_no_value_of_a_tensor(
    tmp_path: Path, content: Any, overrides: Any, words: str
) -> None:
    with pytest.raises(Exception, match=words) as caught:
        send(tmp_path, "train", content(), **overrides)
    assert "tensor(" not in str(caught.value)


def test_nan_in_the_model_withholds_the_update(tmp_path: Path) -> None:
    content = model()
    params, _ = initial(TASK, 0)
    name = next(iter(params))
    broken = {**params, name: torch.full_like(params[name], float("nan"))}
    content["model"] = to_coded(broken, full_mask(broken))
    with pytest.raises(Exception, match="not finite"):
        send(tmp_path, "train", content)
    assert not list(tmp_path.rglob("round-*"))


def test_a_model_with_an_imprint_module_is_refused_before_it_is_trained(tmp_path: Path) -> None:
    params, _ = initial(Task("prunella.attacks.rob:cnn", (1, 8, 8), 10), 0)
    content = RecordDict({"model": to_coded(params, full_mask(params)), "config": ConfigRecord({"round": 1})})
    for kind in ("train", "train.initial"):
        with pytest.raises(Exception, match="imprint.encode"):
            send(tmp_path, kind, content, model="prunella.attacks.rob:cnn")
    assert not list(tmp_path.rglob("round-*"))


def test_a_model_that_hears_one_class_only_is_refused_and_the_error_holds_nothing_private(tmp_path: Path) -> None:
    """Weights alone, planted into the run's own model: its error names kind and layer, whatever the client's data."""
    params = plant(TASK.build(), initial(TASK, 0)[0], TASK.classes, 3)
    content = RecordDict({"model": to_coded(params, full_mask(params)), "config": ConfigRecord({"round": 1})})
    texts = set()
    for partition in (0, 1):
        with pytest.raises(DefenseError, match=r"silenced classes in 2\.0") as caught:
            send(tmp_path, "train", content, {"partition-id": partition})
        texts.add(str(caught.value))
    assert len(texts) == 1 and not list(tmp_path.rglob("round-*"))


def test_flowers_own_state_stays_empty(tmp_path: Path) -> None:
    """It lives in the SuperNode's memory, is sent with every message, and is lost without a word when it is large."""
    state = RecordDict()
    for round in (1, 2):
        content = send(tmp_path, "train", model(round=round), state=state, defenses="dgp").content
        assert content["ledger"]["rounds"] == round, "what is remembered is on the disk"
    send(tmp_path, "query.hello", RecordDict({"hello": ConfigRecord()}), state=state)
    assert not state


def test_the_state_of_a_round_is_on_disk_before_the_reply(tmp_path: Path) -> None:
    send(tmp_path, "train", model(round=3), defenses="dgp")
    assert [p.name for p in tmp_path.rglob("round-*")] == ["round-00000003.safetensors"]


def test_the_owner_of_few_images_is_warned_of_what_a_channel_knows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for many, warned in ((40, True), (200, False)):
        caplog.clear()
        few = lambda *asked, many=many: load_client(*asked).take(torch.arange(many))  # noqa: E731
        monkeypatch.setattr("prunella.client.session.load_client", few)
        send(tmp_path / str(many), "train", model(), defenses="channel-natural", strategy="random", partition="iid")
        assert ("39 of 64 directions" in caplog.text) is warned, many


def normed(**changed: torch.Tensor) -> RecordDict:
    """A model with batch norm, some of its statistics ``changed``."""
    params, buffers = initial(Task("cnn-bn", (1, 8, 8), 10), 0)
    content = {"model": to_coded(params, full_mask(params)), "buffers": to_dense({**buffers, **changed})}
    return RecordDict({**content, "config": ConfigRecord({"round": 1, "importance": []})})


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_statistics_of_another_shape_kind_or_value_are_no_part_of_the_model(tmp_path: Path, kind: str) -> None:
    """One that is broadcast over the batch would let a server choose the row that an update is of."""
    held: dict[str, Any] = {"model": "cnn-bn", "defenses": "none", "evaluation": "clients"}
    assert "metrics" in send(tmp_path / "honest", kind, normed(), **held).content
    wrong = {
        "shape": torch.ones(16, 32),
        "dtype": torch.ones(32, dtype=torch.float64),
        "value": torch.full((32,), torch.nan),
        "name": None,
    }
    for number, (reason, tensor) in enumerate(wrong.items()):
        odd = normed(**({"0.2.running_mean": torch.ones(32)} if tensor is None else {"0.1.running_mean": tensor}))
        with pytest.raises(WireError) as refused:
            send(tmp_path / str(number), kind, odd, **held)
        assert refused.value.reason == reason
