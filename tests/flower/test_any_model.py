"""Models as they come, adapters beside a frozen base and transformers on token ids, Hugging Face's too: defended, or
refused in words that say what to do."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from prunella.client.accounts import Accounts
from prunella.flower.defend import Defend
from prunella.flower.loop import protected
from tests.flower.foreign import RATE, Net, Seen, batches, load, make, run, tree

WORDS, CLASSES = 20, 3


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter beside it, as LoRA has them. Messages carry the adapters only."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(64, 10).requires_grad_(False)
        self.lora_A, self.lora_B = nn.Linear(64, 4, bias=False), nn.Linear(4, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.base(x) + self.lora_B(self.lora_A(x))

    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:
        torch.manual_seed(1)
        nn.init.normal_(self.base.weight)  # every client has the same
        return super().load_state_dict(state, strict=False, assign=assign)


def adapters(model: nn.Module) -> ArrayRecord:
    return ArrayRecord({name: p.detach() for name, p in model.named_parameters() if p.requires_grad})


class Encoder(nn.Module):
    """Token ids [B, T] to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(ids)).mean(1))


def bert() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: it is in prunella[dev]")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.AutoConfig.for_model(
        "bert", vocab_size=WORDS, max_position_embeddings=8, num_labels=CLASSES, **sizes
    )
    return transformers.AutoModelForSequenceClassification.from_config(config)


MODELS: dict[str, Any] = {"torch": Encoder, "transformers": bert}


def sentences() -> list[tuple[Tensor, Tensor]]:
    ids = torch.randint(0, WORDS, (16, 6), generator=torch.Generator().manual_seed(0))
    return list(zip(ids.split(8), (ids[:, 0] % CLASSES).split(8), strict=True))


def logits(answer: Any) -> Tensor:
    return answer if isinstance(answer, Tensor) else answer.logits


def criterion(answer: Any, labels: Tensor) -> Tensor:
    return cross_entropy(logits(answer), labels)


def stepped(model: nn.Module, message: Message, context: Context) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    with protected(message, context, model) as guard:
        for ids, labels in sentences():
            guard.step(ids, labels, criterion, optimizer)


def by_hand(model: nn.Module, message: Message, context: Context) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    with protected(message, context, model) as guard:
        for ids, labels in sentences():
            optimizer.zero_grad()
            criterion(model(ids), labels).backward()
            guard.gradients()
            optimizer.step()


def plainly(model: nn.Module, message: Message, context: Context) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for ids, labels in sentences():
        optimizer.zero_grad()
        criterion(model(ids), labels).backward()
        optimizer.step()


def arrived(app: Any, folder: Path, build: Any, defenses: str, **more: Any) -> tuple[dict[str, Tensor], Seen]:
    """How far each array of the first client moved, as the server sees it, and all answers."""
    torch.manual_seed(0)
    start = more.pop("start", None) or ArrayRecord(build().state_dict())
    seen = Seen()
    run(app, folder, {"defenses": defenses, **more}, tamper=seen, build=build, start=start)
    before, found = tree(start), seen.trained()
    return {n: t.float() - before[n].float() for n, t in tree(found[0]["arrays"]).items()} if found else {}, seen


def adapted(model: nn.Module, message: Message, context: Context) -> None:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)
    with protected(message, context, model) as guard:
        for x, y in batches(int(context.node_config["partition-id"])):
            guard.step(x, y, cross_entropy, optimizer)


@pytest.mark.parametrize("defenses", ["dgp", "priprune", "dp-sgd"])
def test_adapters_alone_are_defended(defenses: str, tmp_path: Path) -> None:
    app = make([Defend()], adapted, Adapted, adapters)
    moved, seen = arrived(app, tmp_path, Adapted, defenses, start=adapters(Adapted()))
    assert not seen.errors and list(moved) == ["lora_A.weight", "lora_B.weight"]
    assert all(bool(change.any()) for change in moved.values())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("defenses", "loop"), [("dgp", by_hand), ("priprune", by_hand), ("dp-sgd", stepped)])
def test_a_transformer_on_token_ids_is_defended(name: str, defenses: str, loop: Any, tmp_path: Path) -> None:
    moved, seen = arrived(make([Defend()], loop, MODELS[name]), tmp_path, MODELS[name], defenses)
    assert not seen.errors and moved
    bare, _ = arrived(make([], plainly, MODELS[name]), tmp_path / "bare", MODELS[name], "none")
    assert any(not torch.equal(moved[n], bare[n]) for n in moved)


def looped(rows: list[Any], loss: Any) -> Any:
    def loop(model: nn.Module, message: Message, context: Context) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        with protected(message, context, model, rows) as guard:
            for x, y in rows:
                guard.step(x, y, loss, optimizer)

    return loop


@pytest.mark.parametrize("defenses", ["dgp", "dp-sgd"])
def test_a_batch_of_named_tensors_is_defended_as_its_tokens_alone_are(defenses: str, tmp_path: Path) -> None:
    """As Hugging Face's loops have it: labels among the tensors, the loss in the answer. Dropout is off, so that both
    see the same; of dp-sgd it is the clipped sum, all but without noise."""

    def still() -> nn.Module:
        model = bert()
        model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.0
        return type(model)(model.config)

    rows = [({"input_ids": x, "attention_mask": torch.ones_like(x), "labels": y}, y) for x, y in sentences()]
    loops = {"named": looped(rows, lambda answer, _: answer.loss), "alone": looped(sentences(), criterion)}
    given = {} if defenses == "dgp" else {"dp-sgd.noise-multiplier": 1e-9}
    (one, a), (other, b) = (
        arrived(make([Defend()], loop, still), tmp_path / name, still, defenses, **given)
        for name, loop in loops.items()
    )
    assert not a.errors and not b.errors and any(bool(change.any()) for change in one.values())
    for name, change in one.items():
        torch.testing.assert_close(change, other[name], rtol=1e-4, atol=1e-6)


def shown(model: nn.Module, message: Message, context: Context) -> None:
    with protected(message, context, model, sentences()) as guard:
        guard.images(sentences()[0][0])


@pytest.mark.parametrize(
    ("defenses", "loop", "told"),
    [
        ("channel-natural", by_hand, "fitted on all images"),
        ("channel-natural", shown, "for anything else choose a defense of gradients or updates"),
        ("dp-sgd", by_hand, "write guard.step"),
        ("soteria", stepped, "soteria works on"),
    ],
)
def test_what_cannot_defend_token_ids_refuses(defenses: str, loop: Any, told: str, tmp_path: Path) -> None:
    _, seen = arrived(make([Defend()], loop, Encoder), tmp_path, Encoder, defenses)
    assert not seen.trained() and told in seen.errors[0]


class Still(nn.Module):
    """A batch norm and dropout, which the app keeps in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm2d(1), nn.Dropout(0.5)
        self.hidden, self.out = nn.Linear(64, 20), nn.Linear(20, 10)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(self.drop(torch.relu(self.hidden(self.norm(x).flatten(1)))))
        return found


def kept_still(model: nn.Module, message: Message, context: Context) -> None:
    model.norm.eval()
    model.drop.eval()
    before = [layer.training for layer in model.modules()]
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with protected(message, context, model) as guard:
        for x, y in batches(0):
            guard.step(x, y, cross_entropy, optimizer)
            assert [layer.training for layer in model.modules()] == before


def test_what_an_app_has_in_evaluation_mode_stays_there(tmp_path: Path) -> None:
    """Statistics of a frozen batch norm would leave."""
    moved, seen = arrived(make([Defend()], kept_still, Still), tmp_path, Still, "soteria")
    assert not seen.errors and bool(moved["hidden.weight"].any())
    assert not any(bool(moved[f"norm.running_{name}"].any()) for name in ("mean", "var"))


class Recurrent(nn.Module):
    """The last of an LSTM's answers to the rows of an image: ``vmap`` has no rule for it."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.out = nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.out(self.reads(x[:, 0])[0][:, -1])
        return answer


class Detached(torch.autograd.Function):
    """Written as before ``torch.func``, which cannot take its gradient."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> Any:
        return slopes[0]


class Old(Recurrent):
    def forward(self, x: Tensor) -> Tensor:
        return Detached.apply(super().forward(x))  # type: ignore[no-any-return, no-untyped-call]


def one_step(model: nn.Module, message: Message, context: Context) -> None:
    x, y = next(batches(0))
    with protected(message, context, model) as guard:
        guard.step(x, y, cross_entropy, torch.optim.SGD(model.parameters(), lr=1.0))


@pytest.mark.parametrize("defenses", ["dp-sgd", "outpost"])
def test_a_recurrent_network_is_defended(defenses: str, tmp_path: Path) -> None:
    """One step of dp-sgd, all but without noise, is the mean of clipped gradients that a plain loop takes."""
    given = {"dp-sgd.clip": 0.5, "dp-sgd.noise-multiplier": 1e-7} if defenses == "dp-sgd" else {}
    moved, seen = arrived(make([Defend()], one_step, Recurrent), tmp_path, Recurrent, defenses, **given)
    assert not seen.errors
    torch.manual_seed(0)
    model, (x, y), want = Recurrent(), next(batches(0)), dict.fromkeys(moved, torch.zeros(()))
    for i in range(len(y) if defenses == "dp-sgd" else 0):
        model.zero_grad()
        cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
        factor = min(1.0, 0.5 / float(norm)) / len(y)
        want = {n: want[n] - factor * p.grad for n, p in model.named_parameters() if p.grad is not None}
    for name, change in moved.items():
        assert bool(change.any())
        if defenses == "dp-sgd":
            torch.testing.assert_close(change, want[name], rtol=1e-3, atol=1e-5)


def test_what_has_no_gradient_of_one_example_is_refused_before_it_is_charged(tmp_path: Path) -> None:
    """In words that say what to do, and so that no site stops asking the app."""
    _, seen = arrived(make([Defend()], one_step, Old), tmp_path, Old, "dp-sgd")
    assert "(RuntimeError; the rest is in" in seen.errors[0] and "choose a defense without an ε" in seen.errors[0]
    assert "setup_context" not in seen.errors[0], "the text of an exception of the app's own"
    assert {path.read_text().strip() for path in tmp_path.rglob("failures.json")} == {"0"}
    assert not Accounts(tmp_path / "0" / "flower", torch.zeros(1, dtype=torch.int64)).ledger().charges


class Sparse(nn.Module):
    """Words whose gradient is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(WORDS, 8, sparse=True), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.embed((x.flatten(1) * (WORDS - 1)).long()).mean(1))
        return found


def stepped(model: nn.Module, message: Message, context: Context) -> None:
    x, y = load(0)
    guard = protected(message, context, model)
    guard.step(x[:8], y[:8], cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1))


def test_sparse_gradients_are_defended(tmp_path: Path) -> None:
    seen = Seen()
    run(make([Defend()], stepped, Sparse), tmp_path, {"defenses": "priprune"}, tamper=seen, build=Sparse)
    assert not seen.errors and len(seen.trained()) == 1


class Unused(Recurrent):
    """With a head that no loss reads."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(12, 3)


def decayed(step: Any) -> Any:
    def loop(model: nn.Module, message: Message, context: Context) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.5)
        step(model, message, context, optimizer)

    return loop


def in_one(model: nn.Module, message: Message, context: Context, optimizer: Any) -> None:
    with protected(message, context, model) as guard:
        for x, y in batches(0):
            guard.step(x, y, cross_entropy, optimizer)


def in_parts(model: nn.Module, message: Message, context: Context, optimizer: Any) -> None:
    with protected(message, context, model) as guard:
        for x, y in batches(0):
            optimizer.zero_grad()
            cross_entropy(model(guard.images(x)), y).backward()
            guard.gradients()
            optimizer.step()


def bare(model: nn.Module, message: Message, context: Context, optimizer: Any) -> None:
    for x, y in batches(0):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("step", [in_one, in_parts])
def test_what_has_no_gradient_is_not_decayed_in_a_guarded_loop_either(step: Any, tmp_path: Path) -> None:
    want, _ = arrived(make([], decayed(bare), Unused), tmp_path / "bare", Unused, "none")
    moved, seen = arrived(make([Defend()], decayed(step), Unused), tmp_path / "a", Unused, "none")
    assert not seen.errors and bool(want["out.weight"].any()) and not want["other.weight"].any()
    assert all(torch.equal(moved[name], want[name]) for name in want)


def test_a_defense_of_gradients_that_leaves_one_of_zeros_leaves_none(tmp_path: Path) -> None:
    """Outpost without noise prunes, and makes of no gradient zeros, which weight decay would count."""
    given = {"outpost.noise": 0.0, "outpost.decay": 0.0}
    moved, seen = arrived(make([Defend()], decayed(in_one), Unused), tmp_path, Unused, "outpost", **given)
    assert not seen.errors and bool(moved["out.weight"].any()) and not moved["other.weight"].any()


@pytest.mark.parametrize("defenses", ["none", "priprune"])
def test_sparse_gradients_stay_sparse_where_no_defense_changes_them(defenses: str, tmp_path: Path) -> None:
    class Both:
        """Two optimisers as one."""

        def __init__(self, model: Any) -> None:
            self.all = [torch.optim.SparseAdam([model.embed.weight]), torch.optim.Adam(model.out.parameters())]

        def step(self) -> None:
            for optimizer in self.all:
                optimizer.step()

    def loop(model: nn.Module, message: Message, context: Context) -> None:
        optimizer: Any = Both(model)
        in_one(model, message, context, optimizer)

    moved, seen = arrived(make([Defend()], loop, Sparse), tmp_path, Sparse, defenses)
    assert not seen.errors and all(bool(change.any()) for change in moved.values())


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel])
def test_a_wrapped_model_is_refused_in_words_that_name_the_wrapper(wrap: Any, tmp_path: Path) -> None:
    def loop(model: nn.Module, message: Message, context: Context) -> None:
        one_step(wrap(model), message, context)

    _, seen = arrived(make([Defend()], loop), tmp_path, Net, "priprune")
    assert "give protected the module itself (model._orig_mod, model.module)" in seen.errors[0]


def test_a_layer_that_stays_here_is_refused_with_what_may_stay(tmp_path: Path) -> None:
    """As of FedPer, whose head is a client's own: it stays where it does not train in the guarded loop."""

    class Body(Net):
        def load_state_dict(self, state: Any, **more: Any) -> Any:  # type: ignore[override]
            return super().load_state_dict(state, strict=False)

    def body(model: nn.Module) -> ArrayRecord:
        return ArrayRecord({name: t for name, t in model.state_dict().items() if not name.startswith("fc2")})

    def frozen(model: nn.Module, message: Message, context: Context) -> None:
        model.fc2.requires_grad_(False)
        one_step(model, message, context)

    for loop, told in ((one_step, "requires_grad_(False) before protected"), (frozen, "")):
        seen = Seen()
        app = make([Defend()], loop, Body, body)
        run(app, tmp_path / loop.__name__, {"defenses": "priprune"}, tamper=seen, start=body(Body()))
        assert told in seen.errors[0] if told else not seen.errors and len(seen.trained()) == 1


def two_optimizers(model: nn.Module, message: Message, context: Context) -> None:
    first, second = (torch.optim.SGD(part.parameters(), lr=RATE) for part in (model.fc1, model.fc2))
    with protected(message, context, model) as guard:
        for x, y in batches(0):
            guard.step(x, y, cross_entropy, first)
            second.step()


def without_a_batch(model: nn.Module, message: Message, context: Context) -> None:
    protected(message, context, model)


@pytest.mark.parametrize(
    ("loop", "told"),
    [
        (without_a_batch, "where the loader yields no batch"),
        (two_optimizers, "of several: an object whose step() calls theirs"),
    ],
)
def test_a_loop_that_has_the_guard_is_not_told_to_write_it(loop: Any, told: str, tmp_path: Path) -> None:
    _, seen = arrived(make([Defend()], loop), tmp_path, Net, "priprune")
    assert told in seen.errors[0]


@pytest.mark.parametrize("name", ["soteria", "ats", "channel-personalized"])
def test_defenses_of_images_say_so_where_rows_are_numbers(name: str, tmp_path: Path) -> None:
    class Rows(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Flatten(), nn.Linear(64, 10))

    def of_rows(model: nn.Module, message: Message, context: Context) -> None:
        x, y = load(0)
        flat = x.flatten(1)
        guard = protected(message, context, model, flat)
        guard.step(flat[:8], y[:8], cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1))

    seen = Seen()
    run(make([Defend()], of_rows, Rows), tmp_path, {"defenses": name}, tamper=seen, build=Rows)
    assert "images; for anything else choose" in seen.errors[0]


def test_one_metric_may_be_named_without_a_tuple() -> None:
    assert Defend(metrics="train_loss").metrics == ("train_loss",)
