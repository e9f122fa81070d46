"""Ways round the gate: of a server's messages, of an approved app's careless code, of its owner's own mistakes."""

import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from torch import nn
from torch.nn.functional import cross_entropy

from prunella.core.errors import ConfigError, PrunellaError
from prunella.flower.defend import FAILED
from prunella.flower.gate import Gate
from prunella.flower.handled import FAILURES
from prunella.flower.loop import protected
from prunella.flower.scheme import SchemeOrder
from prunella.flower.site import Site
from prunella.privacy.accounting import Privacy
from prunella.wire.encode import encode_mask
from tests.flower.foreign import RATE, batches, load, plain
from tests.flower.test_gate import DGP, NOISE, PRIVATE, Place, app_of, guarded, moved

EPSILON = {**NOISE, "epsilon-budget": 100.0}
SMALL = {"require": "dp-sgd, noise-multiplier>=8", "epsilon-budget": 3.3}  # four messages of eight steps
PRUNED = ("conv.weight", "fc1.weight", "fc2.weight")


def told(model: nn.Module) -> RecordDict:
    return RecordDict({"metrics": MetricRecord({"num-examples": 32})})


def sent(place: Place, app: ClientApp, content: RecordDict, kind: str = "train") -> RecordDict:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    return Gate(app, place.node)(Message(content, 5, kind), place.context).content


# ---- a malicious server


class Oracle:
    """An honest evaluation: its perplexity overflows for weights on which the loss of the first example is large."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, model: nn.Module, message: Message, context: Context) -> None:
        self.calls += 1
        x, y = next(batches(0))
        math.exp(float(cross_entropy(model(x), y)))


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_weights_on_which_honest_code_fails_ask_few_questions_under_an_epsilon(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, oracle = Place(tmp_path, **EPSILON), Oracle()
    honest, large = place.sent, {name: 1e6 * tensor for name, tensor in place.sent.items()}
    content = {"content": told} if kind != "train" else {}
    if kind == "query":
        oracle = Oracle()
        app = ClientApp()

        @app.query()
        def ask(message: Message, context: Context) -> Message:
            oracle.calls += 1
            raise ValueError(PRIVATE)
    else:
        app = app_of(oracle, **content)
    for number in range(2 * FAILURES):
        place.sent = large if number % 2 else honest
        place.context.run_id = number  # a new run is no new account
        if number % 2 or kind != "evaluate":
            place.refused(app, kind)
        else:
            place.ask(app, kind)
    place.sent = large
    for _ in range(FAILURES):
        place.refused(app, kind)
    called = oracle.calls
    assert "failed 20 times" in place.refused(app, kind) and oracle.calls == called
    assert json.loads((tmp_path / "flower" / "failures.json").read_text()) == FAILURES
    assert "has to read the client's log" in place.refused(app_of(guarded))
    assert f"remove {tmp_path / 'flower' / 'failures.json'}" in caplog.text, "which the server is not told"
    (tmp_path / "flower" / "failures.json").unlink()
    place.sent = honest
    place.ask(app_of(guarded))


def test_the_failure_is_on_the_disk_before_the_app_is_asked_and_a_budget_s_end_is_none(tmp_path: Path) -> None:
    place, count = Place(tmp_path, **{**SMALL, "epsilon-budget": 2.0}), tmp_path / "flower" / "failures.json"

    def looks(model: nn.Module, message: Message, context: Context) -> None:
        assert count.read_text() == "1"
        guarded(model, message, context)

    place.ask(app_of(looks))
    assert count.read_text() == "0"
    assert "past privacy.epsilon-budget = 2" in place.refused(app_of(looks))
    assert count.read_text() == "0"


def test_a_site_whose_first_message_is_an_evaluation_trains_afterwards(tmp_path: Path) -> None:
    place = Place(tmp_path, **DGP)
    place.ask(app_of(lambda *_: None, told), "evaluate")
    place.ask(app_of())


def test_where_no_epsilon_is_left_failures_are_not_counted(tmp_path: Path) -> None:
    place = Place(tmp_path, **DGP)
    place.refused(app_of(lambda *_: 1 / 0))
    count = tmp_path / "flower" / "failures.json"
    assert count.read_text() == "1", "the account has no charge yet, and might have had an ε"
    assert Site(place.context, "account").accounts.ledger().epsilon(Privacy()) is None
    place.refused(app_of(lambda *_: 1 / 0))
    assert count.read_text() == "1"


def test_a_message_that_the_app_has_no_function_for_is_no_failure(tmp_path: Path) -> None:
    place = Place(tmp_path, **EPSILON)
    assert "no function for this type" in place.refused(app_of(), "train.other")
    assert not (tmp_path / "flower").exists()


def test_a_mask_beside_weights_outside_of_it_prunes_them(tmp_path: Path) -> None:
    place, seen = Place(tmp_path, **DGP), dict[str, torch.Tensor]()
    mask = {name: torch.arange(t.numel()).view(t.shape) % 2 == 0 for name, t in place.sent.items()}

    def looks(model: nn.Module, message: Message, context: Context) -> None:
        seen.update({name: tensor.clone() for name, tensor in model.state_dict().items()})
        plain(model, message, context)

    beside = ConfigRecord({"mask": encode_mask(mask)})
    answer = sent(place, app_of(looks), RecordDict({"arrays": ArrayRecord(place.sent), "prunella": beside}))
    for name, tensor in answer["arrays"].to_torch_state_dict().items():
        assert torch.equal(seen[name], place.sent[name] * mask[name])
        assert not bool(tensor[~mask[name]].any())
        assert int((tensor != seen[name]).sum()) <= max(1, 0.1 * int(mask[name].sum()))


Change = Callable[[Place, RecordDict], None]


def scaled(factor: float) -> Change:
    def change(place: Place, content: RecordDict) -> None:
        place.sent = {name: factor * tensor for name, tensor in place.sent.items()}
        content["arrays"] = ArrayRecord(place.sent)

    return change


def asked(name: str, round: int, **other: Any) -> Change:
    order = SchemeOrder(name, round, 0.3, 4, PRUNED, (1.0,) * 3, **other).record()
    return lambda place, content: content.__setitem__("prunella", ConfigRecord(order))


def beside(name: str, record: Any) -> Change:
    return lambda place, content: content.__setitem__(name, record)


def set_run(**settings: Any) -> Change:
    return lambda place, content: place.context.run_config.update(settings)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (scaled(math.nan), "not finite"),
        (scaled(math.inf), "not finite"),
        (scaled(1e38), None),
        (scaled(0.0), None),
        (asked("prunefl", 0), "lets no mask of this client's making leave"),
        (asked("feddst", 5), "whose clients send no masks"),
        (asked("lotteryfl", 5), "without scores of held-out examples"),
        (asked("os:system", 5), "unknown strategy"),
        (asked("prunefl", 5, settings="[1]"), "own log"),
        (beside("prunella", ConfigRecord({"scheme": "os:system"})), "cannot be read"),
        (beside("prunella", ConfigRecord({"mask": b"PRUNELLA"})), "are left"),
        (beside("prunella", ConfigRecord({"defenses": "none", "require": ""})), None),
        (beside("more", ArrayRecord({"x": torch.ones(1)})), "2 array records"),
        (beside("prunella-x", ArrayRecord({"x": torch.ones(1)})), None),
        (beside("config", ConfigRecord({"defenses": "none", "require": "", "lr": 0.1, "state-dir": "/tmp"})), None),
        (set_run(require="", metrics="train_loss", **{"state-dir": "/tmp/none"}), None),
        (set_run(**{"epsilon-budget": 1e9}), "write privacy.epsilon-budget"),
        (set_run(**{"dgp.bottom": math.nan}), "dgp.bottom"),
        (set_run(**{"dgp.feedback": False}), "dgp.feedback"),
        (set_run(**{"dgp.botom": 0.0}), "dgp.botom"),
        (set_run(defenses="dgp,top-k"), "no update defense but dgp"),
        (set_run(defenses="mask-hiding"), "mask-hiding fills"),
        (set_run(defenses="dgp,leakage-guard"), "leakage-guard"),
        (set_run(defenses="DGP"), "defenses of this release"),
    ],
)
def test_no_message_of_a_server_s_gets_more_than_the_rule_allows(
    change: Change, words: str | None, tmp_path: Path
) -> None:
    place = Place(tmp_path, **DGP)
    content = RecordDict({"arrays": ArrayRecord(place.sent), "config": ConfigRecord({"lr": 0.1})})
    change(place, content)
    try:
        answer = sent(place, app_of(), content)
    except PrunellaError as error:
        assert words is not None and words in str(error) and PRIVATE not in str(error), error
        return
    assert words is None and moved(place, answer) < 0.08
    assert dict(answer["metrics"]) == {"num-examples": 32} and set(answer) == {"arrays", "metrics", "prunella"}


def test_runs_types_and_an_old_message_begin_no_new_account(tmp_path: Path) -> None:
    place, other = Place(tmp_path, **SMALL), app_of(guarded)
    other.train("more")(other._registered_funcs["train.default"])
    for run, kind in ((1, "train"), (1, "train"), (2, "train"), (3, "train.more")):
        place.context.run_id = run
        place.ask(other, kind)
    second = Place(tmp_path, **{**SMALL, "partition-id": 1})  # another node, the same folder
    assert "past privacy.epsilon-budget = 3.3" in second.refused(other)


# ---- careless code


class Ends(BaseException):
    pass


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
@pytest.mark.parametrize("end", [SystemExit, Ends])
def test_what_ends_the_process_is_the_same_one_text(end: type[BaseException], kind: str, tmp_path: Path) -> None:
    def ends(*_: object) -> None:
        raise end(PRIVATE)

    assert Place(tmp_path, **DGP).refused(app_of(ends), kind) == FAILED


def test_a_loop_that_leaves_out_the_steps_that_fail_is_refused_under_an_epsilon(tmp_path: Path) -> None:
    def skips(model: nn.Module, message: Message, context: Context) -> None:
        optimizer, guard = torch.optim.SGD(model.parameters(), lr=RATE), protected(message, context, model)
        for number, (x, y) in enumerate(batches(0)):
            try:
                guard.step(x, y if number else y[:1], cross_entropy, optimizer)
            except Exception:  # noqa: BLE001 - as careless code has it
                continue

    place = Place(tmp_path, **EPSILON)
    assert "the loop failed" in place.refused(app_of(skips))
    assert (tmp_path / "flower" / "failures.json").read_text() == "1"


def test_a_thread_of_the_app_s_own_is_not_the_guarded_loop(tmp_path: Path) -> None:
    heard: list[BaseException] = []

    def aside(model: nn.Module, message: Message, context: Context) -> None:
        def work() -> None:
            try:
                guarded(model, message, context)
            except PrunellaError as error:
                heard.append(error)
                plain(model, message, context)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert "works inside the training loop" in Place(tmp_path, **NOISE).refused(app_of(aside))
    assert "without Defend" in str(heard[0])


@pytest.mark.parametrize("autocast", [True, False])
def test_mixed_precision_leaves_the_noise_as_it_is(autocast: bool, tmp_path: Path) -> None:
    rate = 1e-4  # at usual ones a noise of 1000 makes a model at random, which may look planted from the second step on

    def mixed(model: nn.Module, message: Message, context: Context) -> None:
        torch.set_default_dtype(torch.float32 if autocast else torch.float16)
        try:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                guarded(model, message, context, rate)
        finally:
            torch.set_default_dtype(torch.float32)

    place = Place(tmp_path, require="dp-sgd, noise-multiplier>=1000")
    after = place.ask(app_of(mixed))["arrays"].to_torch_state_dict()
    change = torch.cat([(after[name] - tensor).flatten() for name, tensor in place.sent.items()])
    wanted = 1000 * rate / 8 * 4**0.5  # four steps of batches of eight
    assert 0.93 * wanted < float(change.std()) < 1.07 * wanted


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.relu(self.norm(self.conv(x))).flatten(1))


@pytest.mark.parametrize("where", ["before", "between", "after", "nowhere"])
def test_batch_norm_that_saw_images_outside_the_loop_does_not_leave(where: str, tmp_path: Path) -> None:
    """A required channel covers batch norm's statistics, if they are of the images that it showed."""

    def scored(model: nn.Module, here: str) -> None:
        if where == here:
            model(load(0)[0])  # and model.eval() was forgotten

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = Normed()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        guard = protected(message, context, model, load(0)[0])
        scored(model, "before")
        for x, y in batches(0):
            guard.step(x, y, cross_entropy, optimizer)
            scored(model, "between")
        if where == "after":
            guard.close()
        scored(model, "after")
        return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)

    place = Place(tmp_path, require="channel-natural")
    place.sent = Normed().state_dict()
    if where == "nowhere":
        place.ask(app)
    else:
        words = "not what protected() left" if where == "after" else "batch norm has seen images outside the loop"
        assert words in place.refused(app)


def test_a_listed_number_has_three_digits(tmp_path: Path) -> None:
    def content(model: nn.Module) -> RecordDict:
        numbers = {"num-examples": 123456, "loss": 0.123456789, "right": 4711, "Loss": 1.0, "loss ": 1.0, "f1": [0.5]}
        return RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(numbers)})

    answer = Place(tmp_path, **DGP, metrics="loss, right, f1").ask(app_of(content=content))
    assert dict(answer["metrics"]) == {"num-examples": 123456, "loss": 0.123, "right": 4710}


# ---- a careless owner


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"requires": "dgp"}, "requires in the node configuration is no condition"),
        ({"Require": "dgp"}, "write require, epsilon-budget, delta"),
        ({"epsilon_budget": 3.0}, "epsilon_budget in the node"),
        ({"require": "dgp", "epsilon": 3.0}, "epsilon in the node"),
        ({"require": " , "}, "names nothing"),
        ({"require": "dp-sdg"}, "did you mean 'dp-sgd'"),
        ({"require": "dp-sgd clip<=1"}, "unknown setting in require"),
        ({"require": "dp-sgd, bottom>=0.9"}, "unknown setting in require"),
        ({"require": "dgp, bottom<=0.5"}, "lets a weaker defense pass"),
        ({"require": "dp-sgd, noise-multiplier>=1, noise-multiplier<=2"}, "given twice"),
        ({"require": "dgp", "epsilon-budget": "three"}, "must be a number"),
    ],
)
def test_a_rule_that_says_something_else_is_refused(node: dict[str, Any], words: str, tmp_path: Path) -> None:
    called = list[int]()
    place = Place(tmp_path, {"defenses": "none"}, **node)
    with pytest.raises(PrunellaError, match=words):
        place.ask(app_of(lambda *_: called.append(1)))
    assert not called


def test_without_a_disk_the_app_is_not_asked(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    called = list[int]()
    for node in (DGP, EPSILON):
        with pytest.raises(PrunellaError, match="own log"):
            Place(tmp_path / "state", **node).ask(app_of(lambda *_: called.append(1)))
    assert not called


def test_noise_that_no_account_can_add_up_is_refused_at_the_start() -> None:
    from prunella.client.policy import read_policy
    from prunella.flower.site import check_conditions

    check_conditions(read_policy({**EPSILON}))
    with pytest.raises(ConfigError, match="times the clip"):
        check_conditions(read_policy({"require": "dp-sgd, noise-multiplier>=1e9", "epsilon-budget": 3.0}))
