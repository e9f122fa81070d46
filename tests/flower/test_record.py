"""Traces of a plain quick-start app under Flower's own FedAvg: recorded, attacked, scored; and what does not fit."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Strategy

from prunella.attacks.trace import load_trace, norm_stood_still
from prunella.benchmarks.engine.inprocess import FIRST_NODE, InProcessGrid, Tamper
from prunella.core.errors import AttackError, ConfigError
from prunella.core.files import write_tree
from prunella.core.trees import Tree, density
from prunella.deploy.errors import UsageError
from prunella.deploy.tools.replay import Sources, replay
from prunella.flower.arrays import MARK
from prunella.flower.defend import Defend
from prunella.flower.prune import Prune
from prunella.flower.record import Record, Recorder, Training, applied, record
from prunella.library.attack import attack
from prunella.server.audit.shadow import frozen_in, template_of
from prunella.tasks.task import Task
from prunella.wire.records import to_dense
from tests.flower import foreign
from tests.flower.foreign import Seen, make, run
from tests.quickstart import BATCH, LEARNING_RATE, Net, app, load

MODEL = "tests.quickstart:build"
TASK = Task(MODEL, (1, 8, 8), 10)
HOW = Training(LEARNING_RATE, BATCH)
OWN = Task("tests.flower.foreign:Net", (1, 8, 8), 10)


def start(strategy: Strategy, folder: Path, rounds: int = 1, tamper: Tamper | None = None) -> ArrayRecord:
    torch.manual_seed(0)
    grid = InProcessGrid(app, 2, {}, folder / "state", tamper)
    return strategy.start(grid, ArrayRecord(Net().state_dict()), num_rounds=rounds).arrays


def test_a_quick_start_app_is_recorded_attacked_and_scored(tmp_path: Path) -> None:
    plain = start(FedAvg(), tmp_path, rounds=2)
    recorder = Recorder(TASK, tmp_path / "traces", HOW, chosen=lambda round, node: round == 2 or node == FIRST_NODE)
    recorded = start(record(FedAvg(), recorder), tmp_path, rounds=2)
    for name, tensor in plain.to_torch_state_dict().items():
        assert torch.equal(tensor, recorded.to_torch_state_dict()[name]), "recording changed the training"
    names = sorted(path.name for path in (tmp_path / "traces").iterdir())
    assert names == [f"round-00000{r}-node-{n}.safetensors" for r, n in [(1, 100), (2, 100), (2, 101)]]

    view, _, about = load_trace(tmp_path / "traces" / names[2], TASK)
    assert (view.steps, view.batch_size, view.num_examples, about) == (3, 2, 5, {"round": 2, "node": "101"})
    assert set(view.buffers) == set(view.received_buffers) == {"norm.running_mean", "norm.running_var"}
    assert not torch.equal(view.buffers["norm.running_var"], view.received_buffers["norm.running_var"])

    x, y = load(0)
    write_tree(tmp_path / "truth.safetensors", {"x": x, "y": y})
    settings = ["sgi.iterations=120", "sgi.labels-tried=1"]
    sources = Sources(tmp_path / "traces" / names[0], tmp_path, MODEL, tmp_path / "truth.safetensors")
    shown = replay(sources, "sgi", settings, 0)
    assert shown.leakage is not None and shown.leakage.psnr.mean > 20
    assert shown.answer.y is not None and shown.answer.y.tolist() == y.tolist()
    assert any(line.startswith("psnr") and "random" in line for line in shown.lines())


def test_layers_in_one_line_are_recorded_as_clients_got_and_gave_them(tmp_path: Path) -> None:
    """Outside of Prune, to clients that are sent coded messages: a trace has the pruned weights, and no more zeros."""
    how = Training(0.1, 8)
    task = Task("tests.flower.test_record:small", (1, 8, 8), 10)
    strategy = Record(Prune(FedAvg(), "random", rate=0.5), str(tmp_path / "traces"), task, how)
    run(make([Defend()]), tmp_path / "state", {"defenses": "dgp"}, strategy, rounds=3)
    traces = sorted((tmp_path / "traces").iterdir())
    assert len(traces) == 6
    view, _, _ = load_trace(traces[-1], task)
    zero = {name: float((tensor == 0).float().mean()) for name, tensor in view.params.items()}
    assert 0.45 < zero["fc1.weight"] < 0.55 and zero["fc1.bias"] < 0.1
    assert 0.85 < float((view.update["fc1.weight"] == 0).float().mean()) < 0.95, (
        "half of it pruned, four fifths withheld"
    )


def small(shape: object, classes: object) -> foreign.Net:
    return foreign.Net()


@pytest.mark.parametrize(
    "sent, answered",
    [(torch.float64, torch.float32), (torch.float32, torch.float16), (torch.float64, torch.float64)],
    ids=["fedadam", "half", "double"],
)
def test_a_weight_that_only_the_answer_s_type_rounds_was_withheld(
    sent: torch.dtype, answered: torch.dtype, tmp_path: Path
) -> None:
    """FedAdam and its kind make float64 of a model, which clients answer in float32."""
    task, seen = Task("tests.flower.test_record:small", (1, 8, 8), 10), foreign.Seen()
    start = {name: tensor.to(sent) / 3 for name, tensor in foreign.Net().state_dict().items()}
    app = make([Defend()], arrays=lambda model: ArrayRecord({n: t.to(answered) for n, t in model.state_dict().items()}))
    strategy = Record(FedAvg(fraction_evaluate=0.0), tmp_path / "traces", task, Training(0.1, 8))
    run(app, tmp_path / "state", {"defenses": "dgp"}, strategy, tamper=seen, start=ArrayRecord(start))
    view, _, _ = load_trace(tmp_path / "traces" / "round-000001-node-100.safetensors", task)
    after = foreign.tree(seen.trained()[0]["arrays"])
    assert view.shared is not None
    for name, tensor in after.items():
        before = start[name].to(answered)
        assert torch.equal(view.shared[name], tensor != before), name
        assert torch.equal(view.params[name], start[name].float())
        torch.testing.assert_close(view.update[name], (tensor.double() - before.double()).float(), rtol=0, atol=1e-7)
    assert 0.15 < density(view.shared) < 0.25, "dgp sends a fifth"
    assert attack((view, task), "ig", iterations=2).images is not None


def test_the_statistics_of_a_frozen_batch_norm_stood_still_in_the_answer_s_type(tmp_path: Path) -> None:
    recorder = Recorder(TASK, tmp_path, HOW)
    plain = Net().state_dict()
    sent = {name: (tensor.double() + 1) / 3 for name, tensor in plain.items()}  # the means too are not 0
    params, buffers = recorder.split(RecordDict({"arrays": ArrayRecord(sent)}))
    answer = {name: sent[name].to(tensor.dtype) for name, tensor in plain.items()}
    view = recorder.view(
        RecordDict({"arrays": ArrayRecord(answer), "metrics": MetricRecord({"num-examples": 1})}), params, buffers
    )
    assert norm_stood_still(view)


class Tied(foreign.Net):
    """One layer twice, and one that nobody trains."""

    def __init__(self) -> None:
        super().__init__()
        self.again = torch.nn.ModuleList([torch.nn.Linear(20, 20)] * 2)
        self.conv.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.sigmoid(self.fc1(torch.sigmoid(self.conv(x)).flatten(1)))
        for layer in self.again:
            hidden = torch.sigmoid(layer(hidden))
        return self.fc2(hidden)


class Thawed(Tied):
    """The same model in the hands of a server that does not know what the app freezes."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(True)


@pytest.mark.parametrize("known", ["Tied", "Thawed"])
def test_tied_weights_are_recorded_once_and_frozen_ones_as_not_shared(known: str, tmp_path: Path) -> None:
    task, app = Task(f"tests.flower.test_record:{known}", (1, 8, 8), 10), make([], build=Tied)
    strategy = Record(FedAvg(fraction_evaluate=0.0), tmp_path / "traces", task, Training(0.1, 8))
    run(app, tmp_path / "state", {}, strategy, build=Tied)
    view, _, _ = load_trace(tmp_path / "traces" / "round-000001-node-100.safetensors", task)
    assert {name for name in view.update if name.startswith("again")} == {"again.0.weight", "again.0.bias"}
    assert view.shared is not None
    assert {n for n, seen in view.shared.items() if not seen.any()} == {"conv.weight", "conv.bias"}
    assert all(bool(seen.all()) is bool(view.update[name].any()) for name, seen in view.shared.items())


@pytest.mark.parametrize("defense", ["none", "dgp"])
@pytest.mark.parametrize("pruned", [False, True], ids=["dense", "pruned"])
def test_frozen_layers_of_clients_with_defend_are_not_trained_by_the_control(
    pruned: bool, defense: str, tmp_path: Path
) -> None:
    """Neither the mask nor what a defense withholds hides which layers never move."""
    task, app = Task("tests.flower.test_record:Thawed", (1, 8, 8), 10), make([Defend()], build=Tied)
    inner = FedAvg(fraction_evaluate=0.0)
    strategy = Record(Prune(inner, "random", rate=0.5) if pruned else inner, tmp_path / "traces", task, HOW)
    run(app, tmp_path / "state", {"defenses": defense}, strategy, rounds=2, build=Tied)
    for trace in (tmp_path / "traces").iterdir():
        view, _, _ = load_trace(trace, task)
        assert (view.mask is not None) is pruned and (set(view.defenses) - {"none"} == {"dgp"}) is (defense == "dgp")
        control = template_of(view, ("none",))
        assert frozen_in(control) == {"conv.weight", "conv.bias"}
        assert view.shared is not None and not view.shared["conv.weight"].any()


def answer(moving: set[str], node: int) -> Message:
    """What a client sends of which no more moved than ``moving``."""
    state = {n: t + (0.1 if n in moving else 0.0) for n, t in foreign.Net().state_dict().items()}
    told = {"metrics": MetricRecord({"num-examples": 8}), MARK: ConfigRecord({"applied": ["dgp"]})}
    reply = Message(RecordDict({"arrays": ArrayRecord(state), **told}), dst_node_id=1, message_type="train")
    reply.metadata._src_node_id = node  # as the grid sets it
    return reply


def test_what_a_defense_withheld_of_one_client_is_trained_if_another_answer_moved_it(tmp_path: Path) -> None:
    names = set(foreign.Net().state_dict())
    recorder = Recorder(OWN, tmp_path, HOW)

    def seen(round: int, *moving: set[str], kept: Tree | None = None) -> list[set[str]]:
        torch.manual_seed(0)
        sent, _ = recorder.split(RecordDict({"arrays": ArrayRecord(foreign.Net().state_dict())}))
        recorder._sent = {node: (sent, {}) for node in range(len(moving))}
        replies = []
        for node, each in enumerate(moving):
            torch.manual_seed(0)
            replies.append(answer(each, node))
        recorder.record(round, replies, beside=lambda reply: {"mask": kept})
        files = [tmp_path / f"round-{round:06d}-node-{node}.safetensors" for node in range(len(moving))]
        return [set(load_trace(file, OWN)[0].frozen) for file in files]

    pruned = {name: torch.full_like(t, name != "conv.bias").bool() for name, t in foreign.Net().state_dict().items()}
    few, more = names - {"fc2.bias", "conv.bias"}, names - {"conv.bias"}
    assert seen(1, few, more) == [{"conv.bias"}] * 2, "the first client's bias moved in the second's answer"
    assert seen(2, few) == [{"conv.bias"}], "and in the round before"
    assert seen(2, few, kept=pruned) == [set()], "what a scheme pruned whole"
    assert seen(3, few, names) == [set(), set()]


def test_positions_of_parameters_have_no_second_name(tmp_path: Path) -> None:
    recorder, model = Recorder(Task("tests.flower.test_record:Tied", (1, 8, 8), 10), tmp_path, HOW), Tied()
    sent = {str(at): parameter.detach() for at, parameter in enumerate(model.parameters())}
    params, _ = recorder.split(RecordDict({"model": to_dense(sent)}))
    assert params.keys() == dict(model.named_parameters()).keys()


def test_a_shape_that_no_trace_can_hold_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\(12,\) is not \(C, H, W\): write \(1, 1, 12\)"):
        Recorder(Task(MODEL, (12,), 2), tmp_path, HOW)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda: {"task": "cnn"}, "is no Task: write Task("),
        (lambda: {"task": Task("cnn", 10, (1, 8, 8))}, "a Task is of model, shape and classes"),  # type: ignore[arg-type]
        (lambda: {"training": 0.1}, "is no Training: write Training("),
        (lambda: {"chosen": [1]}, "chosen is a function"),
        (lambda: {"training": Training(0.1, 0)}, "batch_size is a whole number"),
        (lambda: {"training": Training(0.1, 8, epochs=0)}, "epochs is a whole number"),
        (lambda: {"training": Training(0.1, 8, steps=1.5)}, "steps is a whole number"),  # type: ignore[arg-type]
        (lambda: {"training": Training(0.0, 8)}, "learning_rate is above 0"),
    ],
)
def test_what_would_record_nothing_is_refused_at_once(given: Any, told: str, tmp_path: Path) -> None:
    """Else the run would go on to its end, and each trace be missing."""
    with pytest.raises(ConfigError, match=re.escape(told)):
        Record(FedAvg(), **{"folder": tmp_path, "task": TASK, "training": HOW, **given()})


def test_a_folder_that_cannot_be_written_is_told_before_a_client_is_asked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    seen = Seen()
    strategy = Record(FedAvg(fraction_evaluate=0.0), tmp_path / "file" / "traces", OWN, Training(0.1, 8))
    with pytest.raises(ConfigError, match="traces cannot be written into .* .NotADirectoryError.: name another"):
        run(make([]), tmp_path / "state", {}, strategy, tamper=seen)
    assert not seen.replies


def test_code_of_a_trace_runs_only_where_the_user_names_it(tmp_path: Path) -> None:
    start(record(FedAvg(), Recorder(TASK, tmp_path, HOW)), tmp_path)
    trace = tmp_path / "round-000001-node-100.safetensors"
    with pytest.raises(AttackError, match="a model of somebody's own"):
        replay(Sources(trace, tmp_path), "sgi", [], 0)
    with pytest.raises(UsageError, match="not of 'tests.other:build'"):
        replay(Sources(trace, tmp_path, "tests.other:build"), "sgi", [], 0)


def test_another_model_is_told_before_the_first_round(tmp_path: Path) -> None:
    for task, told in (
        (Task("cnn", (1, 8, 8), 10), "missing .*0.0.bias.*unknown .*conv1.bias"),
        (Task("tests.flower.test_record:wider", (1, 8, 8), 10), r"fc.weight is \(10, 384\), the model has \(12, 384\)"),
        (Task("tests.flower.test_record:deeper", (1, 8, 8), 10), r"missing \['more.bias', 'more.weight'\]"),
    ):
        with pytest.raises(AttackError, match=told):
            start(record(FedAvg(), Recorder(task, tmp_path / "traces", HOW)), tmp_path)
    assert not (tmp_path / "traces").exists()


def wider(shape: object, classes: object) -> Net:
    net = Net()
    net.fc = torch.nn.Linear(384, 12)
    return net


def deeper(shape: object, classes: object) -> Net:
    net = Net()
    net.more = torch.nn.Linear(1, 1)
    return net


@pytest.mark.parametrize(
    "spoil, told",
    [
        (lambda reply: reply.content["metrics"].pop("num-examples"), "no metric 'num-examples'"),
        (lambda reply: reply.content["metrics"].__setitem__("num-examples", 1e300), "no metric 'num-examples'"),
        (lambda reply: reply.content.array_records["arrays"].pop("fc.bias"), "missing ['fc.bias']"),
        (lambda reply: reply.content.__setitem__("more", ArrayRecord({})), "2 array records"),
        (lambda reply: reply.content.__setitem__("arrays", nan(reply)), "not finite"),
        (lambda reply: reply.content.__setitem__("arrays", eighths(reply)), "is of int8"),
    ],
    ids=["count", "endless", "layer", "records", "nan", "int8"],
)
def test_an_answer_that_does_not_fit_costs_its_trace_only(spoil, told, tmp_path: Path, caplog) -> None:
    """The strategy gets the answer all the same: what it makes of it is its own affair."""
    seen: list[int] = []

    class Counting(FedAvg):
        def aggregate_train(self, server_round, replies):
            seen.append(len(list(replies)))
            return None, MetricRecord({})

    def tamper(reply: Message) -> Message:
        if reply.metadata.src_node_id == FIRST_NODE and "train_loss" in next(
            iter(reply.content.metric_records.values())
        ):
            spoil(reply)
        return reply

    logger = logging.getLogger("flwr")
    logger.addHandler(caplog.handler)
    try:
        start(record(Counting(), Recorder(TASK, tmp_path / "traces", HOW)), tmp_path, tamper=tamper)
    except TypeError:
        pass  # Flower's own start() wants a model at the end
    finally:
        logger.removeHandler(caplog.handler)
    assert seen == [2]
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["round-000001-node-101.safetensors"]
    assert "no trace of node 100 in round 1" in caplog.text and told in caplog.text


def nan(reply: Message) -> ArrayRecord:
    state = reply.content.array_records["arrays"].to_torch_state_dict()
    return ArrayRecord({name: tensor * float("nan") for name, tensor in state.items()})


def eighths(reply: Message) -> ArrayRecord:
    state = reply.content.array_records["arrays"].to_torch_state_dict()
    return ArrayRecord({name: (tensor * 8).to(torch.int8) for name, tensor in state.items()})


def test_a_defense_of_somebody_s_own_is_recorded_by_its_name() -> None:
    """Without it the update would be taken for an undefended one."""
    told = ConfigRecord({"applied": ["dgp", "own:SIGNS", "no defense", "a/b:c", "x" * 500 + ":y"]})
    assert applied(RecordDict({MARK: told})) == ("dgp", "own:SIGNS")


def test_the_documentation_s_lines_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "audit-your-app.md").read_text()
    block = re.search(r"```python\n(.*?record\(.*?)```", text, re.DOTALL)
    assert block is not None and "pytorchexample.model:build" in block[1]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    lines = block[1].replace("pytorchexample.model:build", MODEL).replace("(3, 32, 32)", "(1, 8, 8)")
    exec(compile(lines, "docs/audit-your-app.md", "exec"), names)  # noqa: S102 - our own documentation
    assert len(lines.strip().splitlines()) <= 12
    start(names["strategy"], tmp_path)
    assert len(list((tmp_path / "traces").iterdir())) == 1
