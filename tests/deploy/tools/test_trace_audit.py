"""An audit says how long it takes, runs the controls that match the trace, ends in a report's verdict, and stops."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from prunella.attacks.engine import beside
from prunella.attacks.engine.case import Candidate, Case, Found
from prunella.attacks.score.control import matched_view
from prunella.attacks.trace import load_trace, save_trace
from prunella.core.errors import AttackError
from prunella.core.files import write_tree
from prunella.core.randomness import stream
from prunella.core.trees import zeros_like
from prunella.core.types import PrivateBatch, ServerView
from prunella.deploy.cli.main import app
from prunella.deploy.errors import UsageError
from prunella.deploy.tools.replay import Sources, read_truth
from prunella.deploy.tools.trace_audit import Stop, TraceAudit, conclusion, run_audit
from prunella.library.pace import Tell
from prunella.server.audit.canary import load_pool
from prunella.server.audit.shadow import write_public
from prunella.server.audit.view import STATISTICS
from prunella.server.report.verdict import verdict
from prunella.server.store.schema import row
from prunella.server.store.write import RunStore
from prunella.tasks.data import load_test
from prunella.tasks.datasets.digits import everything
from prunella.tasks.task import Task, initial

TASK = Task("cnn", (1, 8, 8), 10)
FEW = ("ig.iterations=3", "ig.labels-tried=1")


def view_of(x: torch.Tensor, y: torch.Tensor, size: int) -> ServerView:
    """What a foreign app's recorder keeps of plain SGD on these images."""
    params, buffers = initial(TASK, 0)
    steps = len(y) // size
    like = ServerView(params, zeros_like(params), buffers=buffers, num_examples=len(y), steps=steps, batch_size=size)
    used = [PrivateBatch(*each) for each in zip(x.split(size), y.split(size), strict=True)]
    return replace(matched_view(TASK, replace(like, learning_rate=0.1), used), defenses=())


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    x, y = torch.rand(4, 1, 8, 8, generator=stream(0, purpose="image")), torch.tensor([3, 1, 4, 1])
    save_trace(tmp_path / "mine.safetensors", view_of(x, y, 2), TASK, {"round": 5, "node": "7"})
    write_tree(tmp_path / "truth.safetensors", {"x": x, "y": y})
    return tmp_path / "mine.safetensors"


def silent(what: str, iterations: int) -> Tell:
    return lambda *_: None


def audited(
    trace: Path, *settings: str, attack: str = "ig", control: bool = False, worst: bool = False, **more: object
) -> list[str]:
    told: list[str] = []
    sources = Sources(trace, trace.parent, truth=trace.parent / "truth.safetensors")
    asked = TraceAudit(sources, attack, settings or FEW, **more)  # type: ignore[arg-type]
    assert run_audit(asked, control, worst, silent, told.append)
    return told


def test_the_estimate_comes_first_and_names_the_quicker_way(trace: Path) -> None:
    told = audited(trace)
    assert told[0].startswith("estimate   2 steps × 2 images: at most about ")
    assert told[1].startswith("estimate   --worst-case: one step of one image, at most about ")
    assert told[2].startswith("view") and "control" not in "".join(each[:10] for each in told)


def test_of_a_last_step_with_fewer_images_the_estimate_counts_the_images(trace: Path) -> None:
    view, task, metadata = load_trace(trace)
    save_trace(trace, replace(view, num_examples=3), task, metadata)
    asked = TraceAudit(Sources(trace, trace.parent, truth=trace.parent / "truth.safetensors"), "ig", FEW)
    assert next(asked.estimates(False, False)).startswith("2 steps of 3 images: at most about ")


def test_the_control_is_trained_as_the_trace_says_and_the_verdict_is_a_report_s(trace: Path) -> None:
    asked = TraceAudit(Sources(trace, trace.parent, truth=trace.parent / "truth.safetensors"), "ig", FEW)
    sent = asked.stage.canary("control")
    mine = asked.seen[0]
    assert (sent.view.steps, sent.view.batch_size, sent.view.num_examples) == (2, 2, 4)
    assert (sent.view.learning_rate, sent.view.momentum) == (mine.learning_rate, mine.momentum)
    assert all(torch.equal(sent.view.params[name], tensor) for name, tensor in mine.params.items())
    used = [PrivateBatch(*each) for each in zip(sent.truth.x.split(2), sent.truth.y.split(2), strict=True)]
    for name, tensor in matched_view(TASK, mine, used).update.items():
        torch.testing.assert_close(sent.view.update[name], tensor)
    lines: list[str] = []
    run_audit(asked, True, False, silent, lines.append)
    assert sum(each.startswith("control ") for each in lines) == 1
    found, trial = asked.attack_trace(silent)
    trials = [trial, *(each for each, _ in asked.attack_canaries(["control"], silent))]
    answer = verdict([each.line for each in reversed(trials)], asked.state())
    assert [t.line["round"] for t in trials] == [5, 5]
    assert lines[-len(conclusion(answer, asked.whose)) :][0] == f"verdict    {answer.badge}. {answer.headline}"
    assert answer.badge == "Proves nothing" and "failed on its undefended control" in answer.headline
    pictures = [Path(each.split(maxsplit=1)[1]) for each in lines if each.startswith("pictures")]
    assert [each.name for each in pictures] == ["mine-ig.png", "mine-ig-control.png"]
    assert all(Image.open(each).size[0] >= 128 for each in pictures) and found.pictures == pictures[0]


def test_the_worst_case_is_one_public_image_in_place_of_the_trace(trace: Path) -> None:
    told = audited(trace, "ig.iterations=150", "ig.labels-tried=3", worst=True)
    assert told[0].endswith("--truth is not used"), "the client was not attacked, and no word said so"
    assert [each.split()[0] for each in told[:3]] == ["estimate", "single", "pictures"]
    assert not (trace.parent / "mine-ig.png").exists()
    closing = next(each for each in told if each.startswith("verdict"))
    assert "No client's images were scored" in closing or "proves nothing" in closing


def test_without_the_truth_nothing_is_said_of_the_client(trace: Path) -> None:
    (trace.parent / "truth.safetensors").unlink()
    told: list[str] = []
    assert run_audit(TraceAudit(Sources(trace, trace.parent), "ig", FEW), False, False, silent, told.append)
    assert any("no undefended control was run" in each for each in told if each.startswith("verdict"))
    assert not any(each.startswith("psnr") for each in told)


@pytest.mark.parametrize("explained", [False, True])
def test_statistics_beside_a_defended_update_leave_a_doubt_unless_images_explain_the_trace(
    tmp_path: Path, explained: bool
) -> None:
    task = Task("tests.attacks.engine.test_beside:wide", (1, 8, 8), 10)
    params, buffers = initial(task, 0)
    left = {name: buffer + 1 for name, buffer in buffers.items()}
    view = ServerView(params, params, buffers=buffers, received_buffers=left, defenses=("dgp",), num_examples=1)
    save_trace(tmp_path / "mine.safetensors", view, task, {"round": 5})
    write_tree(tmp_path / "truth.safetensors", {"x": torch.rand(1, 1, 8, 8), "y": torch.tensor([3])})
    sources = Sources(tmp_path / "mine.safetensors", tmp_path, task.model, tmp_path / "truth.safetensors")
    asked = TraceAudit(sources, "ig", FEW)
    found, _ = asked.attack_trace(silent)
    assert found.attempt is not None
    seen = replace(found, attempt=replace(found.attempt, explained=explained))
    assert asked._trial(seen).line["reason"] == STATISTICS, "of the update alone"
    by = replace(seen, answer=replace(seen.answer, found_by=beside.STATISTICS))
    assert asked._trial(by).line["reason"] == (None if explained else STATISTICS)


def test_in_the_directory_of_a_run_the_controls_are_the_run_s_own(tmp_path: Path) -> None:
    x, y = torch.rand(2, 1, 8, 8, generator=stream(0, purpose="image")), torch.tensor([3, 1])
    folder = tmp_path / "traces" / "round-000005-client-0"
    view = replace(view_of(x, y, 2), defenses=("dgp",))
    save_trace(folder / "view.safetensors", view, TASK, {"round": 5, "kind": "client"})
    pool = load_pool(TASK, load_test("digits", None), 0)
    write_public(tmp_path / "traces", *reversed(pool), {"strategy": "fedavg", "defenses": "dgp"})
    asked = TraceAudit(Sources(folder, tmp_path), "ig", FEW)
    assert asked.kinds(True, True) == ["control", "control-defended", "single", "single-defended"]
    assert torch.equal(asked.stage.canaries.x, pool[0].x) and asked.whose == "public images of the run"
    assert asked.stage.canary("control-defended").view.defenses == ("dgp",)
    assert TraceAudit(Sources(folder, tmp_path), "ig", public="digits").whose == "test images of digits"


def test_a_model_that_learned_after_the_round_of_a_trace_had_not_learned_in_it(tmp_path: Path) -> None:
    x, y = torch.rand(2, 1, 8, 8, generator=stream(0, purpose="image")), torch.tensor([3, 1])
    store = RunStore.open(tmp_path)
    store.write_run(status="completed", settings={"defenses": "dgp"}, classes=10, test_examples=359, largest_class=0.12)
    for round, accuracy in ((1, 0.1), (5, 0.9)):
        rows = [row("round", round), row("rounds", 5), row("accuracy_ratio", accuracy), row("loss", 1.0)]
        store.append_metrics(round, rows)
    write_public(tmp_path / "traces", *reversed(load_pool(TASK, None, 0)), {"strategy": "fedavg", "defenses": "dgp"})
    for round, doubt in ((1, "Not learned"), (4, "Not learned"), (5, None)):
        folder = tmp_path / "traces" / f"round-{round:06d}-client-0"
        save_trace(folder / "view.safetensors", view_of(x, y, 2), TASK, {"round": round, "kind": "client"})
        found = TraceAudit(Sources(folder, tmp_path), "ig", FEW).state().doubt
        assert (found and found[0]) == doubt


def test_what_a_trace_says_of_its_round_is_not_trusted(trace: Path) -> None:
    view, task, _ = TraceAudit(Sources(trace, trace.parent), "ig").seen
    for said in ("five", -1, 1.5, None, True):
        save_trace(trace, view, task, {"round": said})
        assert TraceAudit(Sources(trace, trace.parent), "ig").round == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_what_was_found_so_far_and_a_second_ends_it(trace: Path, number: int) -> None:
    told: list[str] = []
    stop = Stop()

    def interrupting(what: str, iterations: int) -> Tell:
        return lambda start, iteration, objective: os.kill(os.getpid(), number) if iteration == 2 else None

    sources = Sources(trace, trace.parent, truth=trace.parent / "truth.safetensors")
    settings = ("ig.iterations=500", "ig.patience=500")
    asked = TraceAudit(sources, "ig", settings, stop=stop)
    before = signal.getsignal(number)
    assert not run_audit(asked, True, False, interrupting, told.append)
    assert signal.getsignal(number) is before
    assert (trace.parent / "mine-ig.png").exists() and not (trace.parent / "mine-ig-control.png").exists()
    assert any(each.startswith("psnr") for each in told)
    assert any("stopped before its end" in each or "Proves nothing" in each for each in told)
    with pytest.raises(KeyboardInterrupt):
        stop.ask()


def test_ctrl_c_leaves_what_a_portfolio_has_found(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scout, told, scouted = Case.scout, list[str](), list[str]()

    def interrupted(self: Case, candidate: Candidate, iterations: int) -> list[Found]:
        scouted.append(candidate.name)
        os.kill(os.getpid(), signal.SIGINT)
        return scout(self, candidate, iterations)

    monkeypatch.setattr(Case, "scout", interrupted)
    asked = TraceAudit(Sources(trace, trace.parent, truth=trace.parent / "truth.safetensors"), "portfolio")
    assert not run_audit(asked, True, False, silent, told.append)
    assert (trace.parent / "mine-portfolio.png").exists() and any(each.startswith("psnr") for each in told)
    assert len(scouted) == 1, "the others are not asked any more"
    assert not any(each.startswith("control ") for each in told)


def test_what_cannot_run_is_refused_before_anything_is_estimated(trace: Path, tmp_path: Path) -> None:
    told: list[str] = []
    for name, sources, words in (
        ("inverter", Sources(trace, tmp_path), "inverter learns from shadows of the client, .* a trace there; --worst"),
        ("denoise", Sources(trace, tmp_path), "a trace there or --known FILE"),
        ("ig", Sources(trace, tmp_path, earlier=(trace,)), "--earlier is for"),
        ("ig", Sources(trace, tmp_path, truth=trace), "is not a safetensors file with images"),
        ("r-gap", Sources(trace, tmp_path, keep=tmp_path), "no progress to save"),
        ("ggl", Sources(trace, tmp_path), "ggl"),
        ("ig", Sources(trace, trace), "is a file.*choose another with --out"),
        ("ig", Sources(trace, trace / "below"), "is a file.*choose another with --out"),
        ("ig", Sources(trace, tmp_path, keep=trace), "is a file.*choose another with --keep"),
    ):
        with pytest.raises((UsageError, AttackError), match=words):
            run_audit(TraceAudit(sources, name), False, False, silent, told.append)
    assert not told
    TraceAudit(Sources(trace, tmp_path), "inverter").check(control=False, worst_case=True)


def test_an_attack_that_rebuilds_no_image_has_no_control(trace: Path) -> None:
    """Flat images are no reconstruction: a control of them would always fail."""
    for control, worst in ((True, False), (False, True)):
        with pytest.raises(UsageError, match="label rebuilds no image: leave out --control, --worst-case and --public"):
            audited(trace, "label.rule=impact", attack="label", control=control, worst=worst)
    told = audited(trace, "label.rule=impact", attack="label")
    assert not any("--worst-case" in line for line in told)
    given = ["audit", str(trace), "--attack", "mia", "--known", str(trace)]
    refused = CliRunner().invoke(app, [*given, "--worst-case"])
    assert refused.exit_code == 2 and "mia rebuilds no image: leave out" in refused.output


def test_a_control_has_as_many_images_as_the_client_or_is_refused_at_once(tmp_path: Path) -> None:
    """512 were taken of 1,797 digits, and that they are too few was told when the attack had ended."""
    told: list[str] = []
    for images in (600, 1000):
        x, y = everything().x[:images], everything().y[:images]
        save_trace(tmp_path / f"{images}.safetensors", view_of(x, y, images), TASK, {"round": 5})
    audit = TraceAudit(Sources(tmp_path / "600.safetensors", tmp_path), "ig")
    audit.check(control=True, worst_case=False)
    assert len(audit.stage.canary("control").truth.y) == 600
    few = replace(view_of(x[:4], y[:4], 4), num_examples=1000)  # of which its one step took four
    save_trace(tmp_path / "few.safetensors", few, TASK, {"round": 5})
    audit = TraceAudit(Sources(tmp_path / "few.safetensors", tmp_path), "ig")
    audit.check(control=True, worst_case=False)
    assert len(audit.stage.canary("control").truth.y) == 4
    many = Sources(tmp_path / "1000.safetensors", tmp_path)
    with pytest.raises(UsageError, match="898 public images are too few .* client's 1000: name .* --public"):
        run_audit(TraceAudit(many, "ig"), True, False, silent, told.append)
    assert not told
    TraceAudit(many, "ig").check(control=False, worst_case=True)


def test_a_defense_whose_settings_are_unknown_is_named_as_untried(trace: Path) -> None:
    """Outside a run one undefended image says whether the attack works, and nothing of the defense."""
    plain = audited(trace, "ig.iterations=150", "ig.labels-tried=3", worst=True)
    view, task, about = TraceAudit(Sources(trace, trace.parent), "ig").seen
    save_trace(trace, replace(view, defenses=("dgp", "gaussian")), task, about)
    told = audited(trace, "ig.iterations=150", "ig.labels-tried=3", worst=True)
    assert any("names a defense (dgp, gaussian), but not its settings" in each for each in told)
    assert not any("names a defense" in each for each in plain)
    assert any("rebuilds one image in one step without a defense" in each for each in told)
    weak = audited(trace, "ig.iterations=1", "ig.labels-tried=1", worst=True)
    assert any("does not even rebuild one image in one step without a defense" in each for each in weak)


def test_that_nothing_was_found_of_a_truth_that_nobody_can_check_says_so(trace: Path) -> None:
    """Whose file is of other images hears that nothing was found of them, whatever was rebuilt."""
    said = "whether the images named as the truth made the update"
    assert not any(said in each for each in audited(trace))
    view, task, about = TraceAudit(Sources(trace, trace.parent), "ig").seen
    save_trace(trace, replace(view, defenses=("dgp",)), task, about)
    assert any(said in each for each in audited(trace))


def test_the_command_ends_with_its_exit_codes(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["audit", str(trace), "--attack", "ig", "--out", str(trace.parent), "--truth"]
    arguments += [str(trace.parent / "truth.safetensors"), *(word for each in FEW for word in ("-c", each))]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0 and "verdict    " in done.output, done.output
    monkeypatch.setattr("prunella.deploy.tools.trace_audit.run_audit", lambda *_: False)
    assert CliRunner().invoke(app, arguments).exit_code == 130
    assert CliRunner().invoke(app, [*arguments, "--public", "cifar"]).exit_code in (2, 130)


def test_pixels_outside_of_the_range_of_scores_are_named(tmp_path: Path) -> None:
    write_tree(tmp_path / "truth.safetensors", {"x": everything().x[:2] * 255, "y": everything().y[:2]})
    with pytest.raises(UsageError, match="pixels from 0 to 255"):
        read_truth(tmp_path / "truth.safetensors", tmp_path / "mine.safetensors", TASK)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, y: (x, torch.eye(10)[y]), "y.argmax"),
        (lambda x, y: (x, y + 10), "classes from 0 to 9"),
        (lambda x, y: (x, torch.cat([y, y])), r"shape \[2\] for 1 images"),
        (lambda x, y: (x[:, 0], y), "images x of shape"),
        (lambda x, y: (x[:0], y[:0]), "images x of shape"),
    ],
    ids=["one-hot", "class 10 of 10", "two labels of one image", "no channel", "no image"],
)  # fmt: skip
def test_a_truth_of_another_form_is_refused_before_the_attack(change: Any, words: str, trace: Path) -> None:
    x, y = change(torch.rand(1, 1, 8, 8), torch.tensor([3]))
    write_tree(trace.parent / "other.safetensors", {"x": x, "y": y})
    with pytest.raises(UsageError, match=words):
        TraceAudit(Sources(trace, trace.parent, truth=trace.parent / "other.safetensors"), "ig").check(False, False)


@pytest.mark.parametrize(("turned", "badge"), [(False, "Leak found"), (True, "Not judged")])
def test_images_that_did_not_make_the_update_are_no_truth_about_it(tmp_path: Path, turned: bool, badge: str) -> None:
    """A client that augments: the attack rebuilds what the model saw, which is unlike what the file has."""
    x, y = everything().x[1500:1502], everything().y[1500:1502]
    save_trace(
        tmp_path / "mine.safetensors", view_of(x.flip(-1) if turned else x, y, 2), TASK, {"round": 1, "node": "7"}
    )
    write_tree(tmp_path / "truth.safetensors", {"x": x, "y": y})
    told = audited(tmp_path / "mine.safetensors", "ig.iterations=400", control=True)
    (closing,) = (each for each in told if each.startswith("verdict"))
    assert closing.split(maxsplit=1)[1].startswith(f"{badge}. ")
    assert turned is ("named as the truth make another update" in closing) and "Nothing was rebuilt" not in closing


@pytest.mark.parametrize(("images", "attack", "badge"), [(1, "portfolio", "Leak found"), (2, "ig", "Not judged")])
def test_images_that_the_app_normalises_are_the_truth_about_it(
    tmp_path: Path, images: int, attack: str, badge: str
) -> None:
    """One is rebuilt in the range of its file; where nothing explains more, the line says what the model lacks."""
    x, y = everything().x[1500 : 1500 + images], everything().y[1500 : 1500 + images]
    save_trace(tmp_path / "mine.safetensors", view_of((x - 0.5) / 0.5, y, images), TASK, {"round": 1, "node": "7"})
    write_tree(tmp_path / "truth.safetensors", {"x": x, "y": y})
    few = ("ig.iterations=2",) if attack == "ig" else ("portfolio.passes=4000",)
    told = audited(tmp_path / "mine.safetensors", *few, attack=attack, control=True)
    said = dict(each.split(maxsplit=1) for each in told)
    assert said["verdict"].startswith(f"{badge}. "), told
    assert (images > 1) is (
        "once they are normalised; let the audit's model do that, as (x - 0.5) / 0.5" in said["verdict"]
    )


@pytest.mark.parametrize(
    ("images", "levels", "found", "badge"), [(1, 2, "rebuilt", "Leak found"), (2, 1, "traces", "Traces found")]
)
def test_what_is_like_images_that_made_another_update_is_found_where_nothing_explains_it(
    tmp_path: Path, images: int, levels: int, found: str, badge: str
) -> None:
    """An app of few levels: the scores showed its images, and the verdict knew nothing."""
    x, y = everything().x[1500 : 1500 + images], everything().y[1500 : 1500 + images]
    view = view_of(x, y, images)
    coarse = {name: (u / u.abs().max() * levels).round() * u.abs().max() / levels for name, u in view.update.items()}
    save_trace(tmp_path / "mine.safetensors", replace(view, update=coarse), TASK, {"round": 1, "node": "7"})
    write_tree(tmp_path / "truth.safetensors", {"x": x, "y": y})
    told = audited(tmp_path / "mine.safetensors", "ig.iterations=400", control=True)
    said = dict(each.split(maxsplit=1) for each in told)
    assert said["level"].startswith(f"{found}, of images that made another update")
    assert said["verdict"].startswith(f"{badge}. ")
    assert f"{'an image rebuilt' if found == 'rebuilt' else 'traces of an image'}, PSNR" in said["worst"]


def test_strangers_of_the_same_classes_are_not_found_in_an_update_that_is_explained(tmp_path: Path) -> None:
    """Half of such pairs are nearer to each other than yet other images are."""
    images, y = everything().x, everything().y[1500:1502]
    own = images[[int((everything().y[:1400] == label).nonzero()[0]) for label in y]]
    save_trace(tmp_path / "mine.safetensors", view_of(own, y, 2), TASK, {"round": 1, "node": "7"})
    write_tree(tmp_path / "truth.safetensors", {"x": images[1500:1502], "y": y})
    told = audited(tmp_path / "mine.safetensors", "ig.iterations=400", control=True)
    said = dict(each.split(maxsplit=1) for each in told)
    assert said["level"].startswith("traces, of images that made another update: ")
    assert said["verdict"].startswith("Not judged. ")
