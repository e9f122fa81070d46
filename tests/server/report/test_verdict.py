"""The wording is the product: what may be said when, and what may never be said."""

from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits

from prunella.attacks.score.leakage import score
from prunella.attacks.score.level import level, value
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction
from prunella.server.report.verdict import control_of, control_state, verdict, worst_first
from prunella.tasks.examples import Examples

Audit = dict[str, Any]


def spread(worst: float, other: float, random: float = 0.0) -> dict[str, float]:
    return {"mean": worst, "worst": worst, "random": random, "other": other}


REBUILT = {"psnr": spread(25.0, 10.0), "ssim": spread(0.9, 0.3), "nmi": spread(0.7, 0.3)}
TRACES = {"psnr": spread(13.0, 10.0), "ssim": spread(0.6, 0.3), "nmi": spread(0.5, 0.3)}
NOTHING = {"psnr": spread(9.0, 10.0), "ssim": spread(0.3, 0.3), "nmi": spread(0.3, 0.3)}


def audit(kind: str = "client", scores: Any = None, **changes: Any) -> Audit:
    base = {"round": 5, "kind": kind, "attack": "sgi", "outcome": "scored" if scores else "no-consent",
            "scores": scores, "ok": True if kind == "control" and scores is REBUILT else None}  # fmt: skip
    return base | changes


CONTROL = audit("control", REBUILT)
DEFENDED = audit("control-defended", NOTHING)
FAILED = audit("control", NOTHING, outcome="control-failed", ok=False)


@pytest.mark.parametrize(
    ("audits", "tone", "words"),
    [
        ([], "silent", "Nothing was audited"),
        ([CONTROL, audit(scores=REBUILT)], "leak", "could rebuild images"),
        ([CONTROL, audit(scores=TRACES)], "traces", "In part"),
        ([CONTROL, DEFENDED, audit(scores=NOTHING)], "clear", "Not with this attack"),
        ([CONTROL, audit(scores=NOTHING)], "unproven", "no defense was audited"),
        ([CONTROL, DEFENDED, audit(scores=NOTHING), audit(outcome="failed")], "unproven", "Some audits failed"),
        ([CONTROL, audit("control-defended", outcome="failed"), audit(scores=NOTHING)], "unproven", "audits failed"),
        ([FAILED, audit(scores=NOTHING)], "unproven", "proves nothing: the attack failed"),
        ([FAILED, audit(scores=TRACES)], "unproven", "proves nothing: the attack failed"),
        ([FAILED, audit(scores=REBUILT)], "leak", "could rebuild images"),
        ([audit(scores=NOTHING)], "unproven", "no undefended control was run"),
        ([FAILED], "unproven", "proves nothing: the attack failed"),
        ([audit()], "unproven", "no undefended control was run"),
        ([CONTROL, audit()], "unproven", "No client's images were scored"),
        ([CONTROL, audit("control-defended", REBUILT)], "leak", "defense did not stop the attack"),
        ([CONTROL, audit("control-defended", TRACES), audit()], "traces", "gives something away"),
        ([CONTROL, audit("control-defended", NOTHING), audit()], "unproven", "gave nothing away"),
        ([CONTROL, audit("control-defended", REBUILT), audit(scores=NOTHING)], "traces", "control was rebuilt"),
        ([CONTROL, audit(scores={"psnr": {"worst": 9.0}})], "unproven", "cannot be judged"),
    ],
)
def test_headlines(audits: list[Audit], tone: str, words: str) -> None:
    found = verdict(audits)
    assert found.tone == tone and words in found.headline


@pytest.mark.parametrize("client", [REBUILT, TRACES, NOTHING, None])
@pytest.mark.parametrize("control", [CONTROL, FAILED, None])
def test_nothing_is_ever_called_private_or_safe(client: Any, control: Audit | None) -> None:
    found = verdict([a for a in (control, audit(scores=client)) if a])
    text = " ".join([found.badge, found.headline, *found.sentences]).lower().replace("unknown, not safe", "")
    assert not any(word in text for word in ("private", "safe", "secure", "protected"))


def test_an_all_clear_warns_of_stronger_attacks_and_names_its_control() -> None:
    text = " ".join(verdict([CONTROL, DEFENDED, audit(scores=NOTHING)]).sentences)
    assert "stronger attack" in text and "without a defense the same attack works" in text


def test_one_failed_control_taints_only_what_leans_on_it() -> None:
    audits = [CONTROL, DEFENDED, audit(scores=NOTHING), FAILED | {"round": 10}, audit(scores=NOTHING, round=10)]
    found = verdict(audits)
    text = " ".join(found.sentences)
    assert found.tone == "clear" and "1 of them rely" in text and "1 of 2 trials (round 10)" in text


def test_refusals_and_failures_are_counted_in_words() -> None:
    text = " ".join(verdict([CONTROL, audit(), audit(), audit(outcome="failed")]).sentences)
    assert "2 audits ended without a score" in text and "1 audit failed: unknown, not safe" in text


def test_a_control_counts_for_its_own_attack_and_not_for_the_past() -> None:
    early, late, foreign = CONTROL | {"round": 1}, CONTROL | {"round": 9}, CONTROL | {"round": 5, "attack": "dlg"}
    assert control_of(audit(scores=NOTHING), [late, foreign, early]) is early
    assert control_of(audit(scores=NOTHING), [late, foreign]) is None


def test_a_control_without_a_word_of_its_own_is_judged_by_its_scores() -> None:
    assert control_state(audit("control", REBUILT, ok=None)) == "rebuilt"
    assert control_state(audit("control", NOTHING, ok=None)) == "failed"
    assert control_state(CONTROL | {"outcome": "failed"}) == "failed" and control_state(None) == "missing"


def test_nan_is_no_score() -> None:
    assert value({"scores": {"psnr": {"worst": float("nan")}}}, "psnr") is None
    assert level({"scores": {"psnr": spread(float("nan"), 10.0)}}) == "unknown"


def test_worst_first_orders_by_level_then_psnr() -> None:
    order = [TRACES, REBUILT, NOTHING, {**NOTHING, "psnr": spread(9.5, 10.0)}]
    assert [value(a, "psnr") for a in worst_first(audit(scores=s) for s in order)] == [25.0, 13.0, 9.5, 9.0]


def digits(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    data = load_digits()
    return torch.tensor(data.images[:count], dtype=torch.float32)[:, None] / 16, torch.tensor(data.target[:count])


def level_of(rebuilt: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> str:
    others = Examples(*(each[200:] for each in digits(1200)))
    return level({"scores": score(Reconstruction(rebuilt, y, 0.0, 1), PrivateBatch(x, y), gallery=others).to_dict()})


@pytest.mark.parametrize("count", [1, 4, 16])
def test_on_real_scores_noise_is_nothing_and_a_near_copy_is_rebuilt(count: int) -> None:
    x, y = digits(count)
    generator = stream(0, purpose="test")
    for _ in range(10):
        noise = torch.rand(x.shape, generator=generator)
        assert level_of(noise, x, y) == "baseline"
    copy = (x + 0.05 * torch.randn(x.shape, generator=generator)).clamp(0, 1)
    assert level_of(copy, x, y) == "rebuilt", "positive control"


@pytest.mark.parametrize("count", [1, 4, 16])
def test_on_real_scores_the_mean_digit_is_not_a_rebuilt_image(count: int) -> None:
    x, y = digits(200)
    mean = x.mean(dim=0, keepdim=True).expand(count, -1, -1, -1)
    assert level_of(mean, x[:count], y[:count]) != "rebuilt"
