"""An audit of a model at hand: the update is a client's, its verdict a report's, its controls public images."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrizations

from prunella.core.config import Run
from prunella.core.errors import ConfigError
from prunella.core.types import ServerView
from prunella.library import DEFAULT_ATTACK
from prunella.library import audit as module
from prunella.library.audit import Report, _like, audit, learned
from prunella.library.module import own_task
from prunella.library.trial import CUT, Stage, Trial, as_single
from prunella.server.report.verdict import verdict
from prunella.tasks.public import digits
from prunella.tasks.task import Task

EVERY = digits()
X, Y = EVERY.x[:1], EVERY.y[:1]
FIT = (EVERY.x[100:250], EVERY.y[100:250])


@pytest.fixture(scope="module")
def model() -> nn.Sequential:
    """A model that learned, whose layers can be inverted one by one (attacks.r_gap)."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(net(FIT[0]), FIT[1]).backward()
        optimizer.step()
    return net


def known(net: nn.Module) -> tuple[Task, ServerView]:
    task = own_task(net, (1, 8, 8))
    return task, _like(task, 1, 1, 1, (0.1, 0.0, 0.0))


@pytest.fixture(scope="module")
def leak(model: nn.Sequential) -> Report:
    return audit(model, (X, Y), attacks="r-gap", public=FIT, device="cpu")


def test_a_run_and_the_library_attack_with_the_same_where_none_is_named() -> None:
    assert Run().attack == DEFAULT_ATTACK


def test_an_undefended_image_is_found_and_the_rule_is_the_report_s(model: nn.Sequential, leak: Report) -> None:
    assert (leak.verdict.tone, leak.verdict.badge) == ("leak", "Leak found")
    assert [line["kind"] for line in leak.lines] == ["client", "control", "single"]
    assert leak.lines[0]["level"] is None and leak.lines[0]["scores"]["psnr"]["worst"] > 30
    again = verdict(leak.lines, learned(*known(model), EVERY.take(torch.tensor([0])), None))
    assert again.headline == leak.verdict.headline
    assert leak.lines[1]["objective"] == leak.lines[2]["objective"]  # one image in one step is the worst case, too


def test_the_update_is_that_of_the_user_s_model_and_images(
    model: nn.Sequential, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ServerView] = []
    inner = Stage.attack

    def spy(self: Stage, kind: str, sent, *rest):  # type: ignore[no-untyped-def]
        seen.append(sent.view)
        return inner(self, kind, sent, *rest)

    monkeypatch.setattr(Stage, "attack", spy)
    audit(model, (X, Y), attacks="r-gap", learning_rate=0.5, worst_case=False, device="cpu")
    gradient = torch.autograd.grad(cross_entropy(model(X), Y), list(model.parameters()))
    for (name, tensor), g in zip(seen[0].update.items(), gradient, strict=True):
        torch.testing.assert_close(tensor, -0.5 * g, msg=name)
    assert len(seen) == 2 and not torch.equal(seen[1].update["1.weight"], seen[0].update["1.weight"])


def test_a_defense_is_applied_to_the_batch_and_to_its_control_and_not_to_the_undefended(model: nn.Sequential) -> None:
    found = audit(model, (X, Y), defenses="dgp", attacks=["r-gap"], public=FIT, device="cpu")
    assert [(line["kind"], line["defense"]) for line in found.lines] == [
        ("client", "dgp"), ("control", "none"), ("control-defended", "dgp"), ("single", "none"),
        ("single-defended", "dgp"),
    ]  # fmt: skip
    control, defended = found.lines[1]["scores"], found.lines[2]["scores"]
    assert control["psnr"]["worst"] > 30 and found.lines[1]["ok"]
    assert defended is None or defended["psnr"]["worst"] < control["psnr"]["worst"]


def test_a_worst_case_that_is_the_control_was_cut_short_where_that_was() -> None:
    line = {"kind": "control-defended", "outcome": "scored", "ok": None, "reason": CUT}
    assert as_single(Trial(line)).line["reason"] == CUT and as_single(Trial(line)).line["kind"] == "single-defended"
    failed = line | {"kind": "control", "outcome": "control-failed", "ok": False, "reason": "cannot judge"}
    assert as_single(Trial(failed)).line["reason"] is None and as_single(Trial(failed)).line["kind"] == "single"


def test_it_shows_itself(leak: Report, tmp_path: Path) -> None:
    text = repr(leak)
    assert text.startswith("Leak found. Yes: a curious server") and "Client, r-gap: ● rebuilt" in text
    rows = leak.table if isinstance(leak.table, list) else leak.table.to_dict("records")
    assert [row["kind"] for row in rows] == ["client", "control", "single"] and rows[0]["psnr"] > rows[0]["psnr_other"]
    assert "data:image/png" in leak._repr_html_() and "Controls: the public images that were given" in text
    assert leak._repr_png_() is not None and leak.figure() is not None
    leak.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir())[0] == "r-gap-client.png"


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 10])
def test_a_figure_shows_images_of_any_number_of_channels(leak: Report, channels: int) -> None:
    drawn = tuple(replace(trial, original=None, rebuilt=torch.rand(2, channels, 8, 8)) for trial in leak.trials)
    assert replace(leak, trials=drawn).figure() is not None


def test_without_matplotlib_and_pandas_there_is_a_png_and_a_list(leak: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert leak.figure() == leak._repr_png_() and isinstance(leak.table, list)


def test_the_bundled_sample_is_named_where_no_public_images_are_given(model: nn.Sequential) -> None:
    found = audit(model, (X, Y), attacks="r-gap", worst_case=False, device="cpu")
    assert "scikit-learn's digits" in found.public and found.lines[0]["scores"]["recognition"] is None


def test_what_is_known_of_the_model(model: nn.Sequential) -> None:
    """Of one image right says nothing; of public images of the kind everything; of others nothing."""
    one, public = EVERY.take(torch.tensor([0])), EVERY.take(torch.arange(100, 250))
    assert learned(*known(model), one, None).accuracy is None and learned(*known(model), None, None).accuracy is None
    assert (learned(*known(model), one, public).accuracy or 0) > 0.8 and not learned(*known(model), one, public).doubt
    untrained = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert (learned(*known(untrained), one, public).doubt or [""])[0] == "Not learned"


def test_lists_are_tensors_too(model: nn.Sequential, leak: Report) -> None:
    found = audit(model, (X.tolist(), Y.tolist()), attacks="r-gap", public=FIT, device="cpu")
    assert found.lines[0]["scores"] == leak.lines[0]["scores"]


def test_mistakes_name_their_fix(model: nn.Sequential) -> None:
    for keywords, told in (
        ({"batch": (2 * X, Y)}, r"normalize=\(mean, std\)"),
        ({"batch": (X, torch.tensor([10]))}, "classes from 0 to 9"),
        ({"batch": (X[0], Y)}, r"shape \(1, 8, 8\)"),
        ({"batch": X}, "pair of images"),
        ({"batch": ([X[0], X[0]], ["a", "b"])}, "pair of images"),
        ({"batch": (X, Y), "public": (X, Y, Y)}, "public images must be a pair"),
        ({"batch": (X, Y), "batch_size": 0}, "batch_size=0 is not above 0"),
        ({"batch": (X, Y), "steps": 0}, "steps=0 is not above 0"),
        ({"batch": (X, Y), "learning_rate": float("nan")}, "learning_rate=nan is not above 0"),
        ({"batch": (X, Y), "attacks": "label"}, "cannot judge"),
        ({"batch": (X, Y), "attacks": []}, r"attacks=\[\] names none: leave it out, which is portfolio"),
        ({"batch": (X, Y), "defenses": "dpg"}, "did you mean 'dgp'"),
        ({"batch": (X, Y), "defenses": "dgp", "settings": {"dgp.tops": 0.1}}, "did you mean 'dgp.top'"),
        ({"batch": (X, Y), "settings": {"dgp.top": 0.1}}, "unknown setting"),
        ({"batch": (EVERY.x.repeat(9, 1, 1, 1), EVERY.y.repeat(9)), "attacks": "r-gap"}, "public=|smaller batch"),
    ):
        with pytest.raises(ConfigError, match=told):
            audit(model, **keywords)  # type: ignore[arg-type]


class Attends(nn.Module):
    """Attention over the patches of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.attention = nn.Linear(4, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.embed(nn.functional.unfold(x, 2, stride=2).transpose(1, 2))
        found: torch.Tensor = self.head((z + self.attention(z, z, z, need_weights=False)[0]).mean(1))
        return found


def test_fused_attention_is_descended_through() -> None:
    """PyTorch's has no second derivative."""
    found = audit(Attends(), (X, Y), attacks="sgi", public=FIT, settings={"sgi.iterations": 2}, device="cpu")
    assert all(trial.line["outcome"] != "failed" for trial in found.trials)


@pytest.mark.parametrize(
    ("net", "attack"),
    [
        (
            nn.Sequential(nn.Flatten(), parametrizations.weight_norm(nn.Linear(64, 32)), nn.Tanh(), nn.Linear(32, 10)),
            "portfolio",
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "representation"),
        (nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()), "portfolio"),
    ],
    ids=["weights made of others", "nothing trained before the layer", "no linear layer"],
)
def test_a_model_out_of_the_ordinary_is_rebuilt_from(net: nn.Module, attack: str) -> None:
    found = audit(net, (X, Y), attacks=attack, public=FIT, seconds=20.0, device="cpu")
    assert found.trials[0].line["scores"]["psnr"]["mean"] > 40


def test_a_layer_whose_weights_are_made_of_others_fails_a_named_attack_in_words() -> None:
    net = nn.Sequential(nn.Flatten(), parametrizations.weight_norm(nn.Linear(64, 32)), nn.Tanh(), nn.Linear(32, 10))
    found = audit(net, (X, Y), attacks="representation", public=FIT, device="cpu")
    line = found.trials[0].line
    assert line["outcome"] == "failed" and "is made of other parameters" in line["reason"]
