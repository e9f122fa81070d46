import dataclasses
import math
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from prunella.attacks import ATTACKS, Attack, find_attack, portfolio
from prunella.attacks.engine import case as engine_case
from prunella.attacks.engine import label_search
from prunella.attacks.engine.case import ASKED, POLISHED, WENT_ON, Candidate, Case, Found, Key, ViewSetting
from prunella.attacks.engine.matching import determined, target_of
from prunella.attacks.ig import Ig
from prunella.attacks.portfolio import CANDIDATES, LEARNT, PLAIN, Gain, Portfolio
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import psnr, score
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial
from tests.shadow_client import ShadowClient

QUICK = Portfolio(passes=1500, seconds=600, iterations=150, restarts=1)


def run(view: ServerView, task: Task, attack: Portfolio = QUICK, **keywords) -> Reconstruction:
    return ATTACKS["portfolio"].reconstruct(view, task, attack, stream(0, purpose="attack"), **keywords)


@dataclass(frozen=True)
class NoisyShadow:
    """A client whose updates carry noise of a multiple of their own deviation."""

    public: Examples
    task: Task
    noise: float

    def send(self, shown: Examples, draw: int, steps: int | None = None, batch_size: int | None = None) -> ServerView:
        view = undefended_view(self.task, *initial(self.task, 0), PrivateBatch(shown.x, shown.y))
        generator = stream(draw, purpose="noise")
        update = {
            n: u + self.noise * u.std() * torch.randn(u.shape, generator=generator) for n, u in view.update.items()
        }
        return dataclasses.replace(view, update=update, labels=shown.y)


def test_every_candidate_names_an_attack_its_settings_and_itself() -> None:
    for each in (*CANDIDATES, *LEARNT):
        names = {f.name for f in dataclasses.fields(find_attack(each.attack).settings)}
        assert set(each.changes) <= names, each.name
    assert len({each.name for each in CANDIDATES}) == len(CANDIDATES)


def test_rebuilds_an_undefended_image_names_who_did_and_takes_it_for_no_other(task, fresh, same_label) -> None:
    truth, other = same_label
    found = run(undefended_view(task, *fresh, truth), task)
    assert score(found, truth).psnr.mean > 40 and psnr(other.x, found.x)[0] < 25
    assert found.found_by in {each.name for each in CANDIDATES} and found.objective < 1e-4


def test_the_update_of_other_weights_gives_nothing(task, fresh, batch) -> None:
    truth = batch(0, 1)
    wrong = dataclasses.replace(undefended_view(task, *fresh, truth), params=initial(task, 1)[0])
    found = run(wrong, task, dataclasses.replace(QUICK, passes=500))
    assert psnr(truth.x, found.x)[0] < 17 and found.objective > 0.01


def test_predicates_ask_the_view_and_the_model() -> None:
    def names(model: str, size: int) -> set[str]:
        task, truth = Task(model, (1, 16, 16), 10), PrivateBatch(torch.rand(size, 1, 16, 16), torch.arange(size))
        view = undefended_view(task, *initial(task, 0), truth)
        setting = ViewSetting(view, target_of(view, task.build(), True, 16))
        return {each.name for each in CANDIDATES if each.applies(setting)}

    assert names("precode-cnn", 1) == {"representation"}
    assert "r-gap" in names("cnn", 1) - names("cnn", 2) and "r-gap" not in names("lenet", 1)
    assert "gradinversion" in {name.split()[0] for name in names("resnet10", 2) - names("cnn", 2)}
    assert "dlg labels=optimise" in names("cnn", 2) - names("cnn", 1)


def test_a_noised_digit_is_rebuilt_with_a_shadow_and_without(task, digits, batch, monkeypatch) -> None:
    monkeypatch.setattr(portfolio, "CANDIDATES", tuple(each for each in CANDIDATES if each.attack == "sgi"))
    shadow = NoisyShadow(Examples(digits.x[:50], digits.y[:50]), task, 1.0)
    truth, other = batch(0, 1), batch(1, 1)
    view = shadow.send(Examples(truth.x, truth.y), 99)
    for keywords in ({}, {"shadow": shadow}):
        found = run(view, task, dataclasses.replace(QUICK, passes=400), **keywords)
        assert psnr(truth.x, found.x)[0] > max(13, psnr(other.x, found.x)[0] + 2)


def test_a_label_that_the_last_layer_does_not_tell_is_looked_for(task, fresh, same_label) -> None:
    """PriPrune withholds the largest values, and with them the label: every candidate took the likeliest one alone, and
    the portfolio was 60 dB below `sgi` by itself."""
    truth, _ = same_label
    view = undefended_view(task, *fresh, truth)
    last = [name for name, value in view.params.items() if len(value) == task.classes]
    kept = {n: torch.ones_like(u, dtype=torch.bool) for n, u in view.update.items()}
    for name in last:
        kept[name][:] = False
    hidden = dataclasses.replace(view, shared=kept, update={n: u * kept[n] for n, u in view.update.items()})
    found = run(hidden, task, dataclasses.replace(QUICK, passes=4000))
    assert found.y.tolist() == truth.y.tolist() and psnr(truth.x, found.x)[0] > 30 and found.explained


def test_stopped_it_ends_with_the_best_it_has(task, view) -> None:
    """Asked again and again while it runs: soon after the answer turns, it is over, with what was found by then."""
    asked = [0]

    def stopped() -> bool:
        asked[0] += 1
        return asked[0] > 60

    draw = stream(0, purpose="noise")
    noisy = {name: u + 2 * u.std() * torch.randn(u.shape, generator=draw) for name, u in view.update.items()}
    view = dataclasses.replace(view, update=noisy)
    found = portfolio.reconstruct(view, task, QUICK, stream(0, purpose="attack"), stopped=stopped)
    assert found.cut and found.x.shape == (1, 1, 8, 8) and found.found_by and 60 < asked[0] < 120
    whole = portfolio.reconstruct(view, task, QUICK, stream(0, purpose="attack"), stopped=lambda: False)
    assert not whole.cut and whole.objective <= found.objective


def test_the_same_seed_gives_the_same_answer_and_no_deadline_is_overrun(task, fresh, batch) -> None:
    view = undefended_view(task, *fresh, batch(0, 2))
    one, two = (run(view, task, dataclasses.replace(QUICK, passes=600)) for _ in range(2))
    assert torch.equal(one.x, two.x) and (one.found_by, one.objective) == (two.found_by, two.objective)
    late = run(view, task, QUICK, deadline=0.0)
    assert late.objective > one.objective


def test_who_is_asked_first_leaves_time_for_the_others(task, view, monkeypatch) -> None:
    """Two attacks that take a second an evaluation, and 600 seconds in all: the first cannot be known to be slow, the
    second gets its share of the time that is left. With shares of the passes alone the plain attack was never asked."""
    now = [0.0]

    def slow(view: ServerView, task: Task, settings: Ig, *_: object, **__: object) -> Reconstruction:
        asked.append(settings.iterations)
        now[0] += settings.iterations
        return Reconstruction(torch.full((1, *task.shape), 0.5), view.labels, 1.0, settings.iterations)

    asked = list[int]()
    for module in (portfolio, engine_case, label_search):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for name in ("slow", "slower"):
        monkeypatch.setitem(ATTACKS, name, Attack(Ig, slow, "nobody"))
    every = lambda setting: True  # noqa: E731
    monkeypatch.setattr(portfolio, "CANDIDATES", (Candidate("slow", every), Candidate("slower", every), PLAIN))
    found = run(view, task, dataclasses.replace(QUICK, passes=100_000, iterations=400))
    assert asked == [300, int(0.3 * 300)] and found.found_by == PLAIN.name and found.objective < 0.01
    assert not found.cut, "it is explained"

    draw, now[0] = stream(0, purpose="noise"), 0.0
    noisy = {name: u + 2 * u.std() * torch.randn(u.shape, generator=draw) for name, u in view.update.items()}
    found = run(dataclasses.replace(view, update=noisy), task, dataclasses.replace(QUICK, passes=1000, iterations=400))
    assert now[0] < 600 and found.cut, "with more time it may have been"


def test_a_part_of_many_images_costs_one_descent_where_there_is_no_time_for_all(
    task, fresh, batch, monkeypatch
) -> None:
    monkeypatch.setattr(portfolio, "explore", None)
    view = undefended_view(task, *fresh, batch(0, 20))
    for short, known in ({"label_passes": 100}, None), ({}, batch(0, 20).y):  # or where no label is open
        its = dataclasses.replace(view, labels=known)
        found = run(its, task, dataclasses.replace(QUICK, max_images=2, **short))
        assert found.found_by == PLAIN.name and len(found.x) == 2 and found.explained is False


def test_more_images_than_are_in_memory_are_searched_together(task, fresh, batch) -> None:
    """Twenty digits in one step, two of them in memory: the first descent merges ten into one, the search does not."""
    truth = batch(0, 20)
    view = undefended_view(task, *fresh, truth)
    assert view.labels is None
    found = run(view, task, dataclasses.replace(QUICK, max_images=2))
    merged = run(view, task, dataclasses.replace(QUICK, max_images=2, label_passes=1))
    assert found.found_by == "label search" and found.x.shape == truth.x.shape and found.compared
    assert score(found, truth).psnr.mean > score(merged, truth).psnr.mean + 5


@pytest.mark.parametrize(("missed", "by"), [(0.02, "all"), (0.25, "all"), (0.4, "merged")])
def test_what_stands_for_single_images_may_miss_more(task, fresh, batch, monkeypatch, missed: float, by: str) -> None:
    def found(name: str, missed: float) -> list[Found]:
        return [Found(name, Reconstruction(batch(0, 2).x, None, missed, 1), None, missed)]

    monkeypatch.setattr(portfolio, "READERS", ())
    monkeypatch.setattr(Case, "solve", lambda *_: found("merged", 0.1))
    monkeypatch.setattr(portfolio, "in_full", lambda *_: found("all", missed))
    assert (
        run(undefended_view(task, *fresh, batch(0, 20)), task, dataclasses.replace(QUICK, max_images=2)).found_by == by
    )


def test_many_images_of_known_labels_are_sought_among_public_ones(task, fresh, digits, batch, monkeypatch) -> None:
    truth, shadow = batch(0, 20), NoisyShadow(Examples(digits.x[50:], digits.y[50:]), task, 0.0)
    view = dataclasses.replace(undefended_view(task, *fresh, truth), labels=truth.y)
    short = dataclasses.replace(QUICK, passes=4000, max_images=2)
    found, alone = run(view, task, short, shadow=shadow), run(view, task, short)
    assert found.found_by == "components" and torch.equal(found.y, truth.y) and alone.found_by == PLAIN.name
    assert score(found, truth).psnr.mean > score(alone, truth).psnr.mean + 4
    monkeypatch.setattr(Case, "seconds", lambda _: 1e6)  # of an evaluation: no time for all
    late = run(view, task, short, shadow=shadow)
    assert late.found_by == PLAIN.name and late.cut and not found.cut and not alone.cut


@pytest.mark.parametrize("images", [2, 20])  # all in memory, or a part of them
def test_a_search_for_labels_that_the_time_cuts_says_so(task, fresh, batch, images, monkeypatch) -> None:
    """With half of its evaluations, and with too few to begin."""
    view, draw = undefended_view(task, *fresh, batch(0, images)), stream(0, purpose="noise")
    noisy = {name: u + 2 * u.std() * torch.randn(u.shape, generator=draw) for name, u in view.update.items()}
    view = dataclasses.replace(view, update=noisy)
    attack = dataclasses.replace(QUICK, max_images=2, passes=100, label_passes=200 * images)
    assert not run(view, task, attack).cut
    for evaluations in (100, 5):
        monkeypatch.setattr(Case, "seconds", lambda _, n=evaluations: 300 / n * 2 / images)
        assert run(view, task, attack).cut


def test_a_rehearsal_scores_scouts_those_that_went_on_and_the_polish(task, digits, monkeypatch) -> None:
    """Where nothing hides the update each stage comes nearer, and all candidates are in the comparison."""
    some = tuple(each for each in CANDIDATES if each.name in ("sgi", "sgi tv=0.2"))
    shadow = NoisyShadow(Examples(digits.x[:60], digits.y[:60]), task, 0.0)
    monkeypatch.setattr(portfolio, "settled", lambda found, doubted: False)
    view = shadow.send(shadow.public.take(torch.tensor([50])), 0)
    case = Case(view, task, dataclasses.replace(QUICK, passes=4000), stream(0, purpose="attack"), float("inf"))
    gains = portfolio.rehearsed(case, some, shadow)
    best = {("components", stage) for stage in (ASKED, WENT_ON, POLISHED)}
    assert set(gains) == best | {("sgi", ASKED), ("sgi", WENT_ON), ("sgi tv=0.2", ASKED)}, (
        "two go on, and the plain one"
    )
    psnr, missed = ({key: gain[i] for key, gain in gains.items()} for i in (0, 1))
    assert psnr["components", WENT_ON] > psnr["components", ASKED] + 3 > psnr["sgi tv=0.2", ASKED] + 10
    solved = max(missed["components", WENT_ON], 1e-6)  # nothing is left to polish: which is nearer is rounding
    assert missed["components", POLISHED] <= solved < missed["components", ASKED]
    assert missed["sgi", WENT_ON] <= missed["sgi", ASKED] < missed["sgi tv=0.2", ASKED]


def test_learnt_attacks_are_asked_behind_a_defense_and_of_several_images(task, view, fresh, batch) -> None:
    def names(view: ServerView) -> set[str]:
        setting = ViewSetting(view, target_of(view, task.build(), True, 16))
        return {each.name for each in LEARNT if each.applies(setting)}

    assert names(undefended_view(task, *fresh, batch(0, 2))) == {"inverter"}

    assert names(view) == set() == names(dataclasses.replace(view, defenses=("none",)))
    assert names(dataclasses.replace(view, defenses=("channel-white",))) == {"inverter", "denoise"}


def test_what_learnt_attacks_rebuild_of_public_images_is_compared(task, digits, batch, monkeypatch) -> None:
    shadow = NoisyShadow(Examples(digits.x[:40], digits.y[:40]), task, 1.0)
    short = {"inverter": {"shadows": 24, "epochs": 1, "polish": 0}, "denoise": {"shadows": 8, "match": 10}}
    monkeypatch.setattr(portfolio, "LEARNT", tuple(each._replace(changes=short[each.attack]) for each in LEARNT))
    view = dataclasses.replace(shadow.send(Examples(batch(0, 1).x, batch(0, 1).y), 99), defenses=("channel-white",))
    case, gains = Case(view, task, QUICK, stream(0, purpose="attack"), float("inf")), dict[Key, Gain]()
    found = {each.by: each for each in portfolio.learnt(case, shadow, gains)}
    assert {each.key for each in found.values()} == set(gains) and set(found) == {"inverter", "denoise"}
    for name, each in found.items():
        assert gains[name, ASKED].psnr == pytest.approx(-10 * math.log10(each.answer.objective))
        assert 5 < gains[name, ASKED].psnr < 30
    open_view = dataclasses.replace(view, defenses=())
    assert not portfolio.learnt(Case(open_view, task, QUICK, stream(0, purpose="attack"), 1e9), shadow, gains)
    late = Case(view, task, QUICK, stream(0, purpose="attack"), 0.0)
    assert late.budget.late() and not portfolio.learnt(late, shadow, gains)
    with pytest.raises(AttackError, match="was stopped"):
        late.solve(next(each for each in portfolio.LEARNT if each.attack == "denoise"), shadow)


def test_where_nothing_fits_it_says_so(task, view, monkeypatch) -> None:
    monkeypatch.setattr(portfolio, "CANDIDATES", (Candidate("sgi", lambda setting: False),))
    with pytest.raises(AttackError, match="no attack of the portfolio"):
        run(view, task)


def test_an_attempt_that_cannot_be_made_costs_nothing_but_itself(task, view, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AttackError("no")

    monkeypatch.setattr(Case, "solve", refuse)
    assert run(view, task, dataclasses.replace(QUICK, passes=500)).found_by not in {None, "representation", "r-gap"}


def test_behind_noisy_images_what_explains_the_update_is_not_the_answer(task, digits, batch) -> None:
    """The client trains on a noisy copy, which comes back whole; whoever learns from public copies shows more."""

    @dataclass(frozen=True)
    class NoisyImages:
        public: Examples

        def send(
            self, shown: Examples, draw: int, steps: int | None = None, batch_size: int | None = None
        ) -> ServerView:
            noise = torch.randn(shown.x.shape, generator=stream(draw, purpose="noise"))
            copies = PrivateBatch((shown.x + 0.3 * noise).clamp(0, 1), shown.y)
            view = undefended_view(task, *initial(task, 0), copies)
            return dataclasses.replace(view, labels=shown.y, defenses=("channel-white",))

    shadow, truth = NoisyImages(Examples(digits.x[50:], digits.y[50:])), batch(0, 1)
    view = shadow.send(Examples(truth.x, truth.y), 10_000)
    alone, learnt = run(view, task), run(view, task, shadow=shadow)
    names = {each.name for each in LEARNT}
    assert alone.explained and learnt.found_by in names
    assert run(view, task, QUICK, shadow=shadow, learn=False).found_by not in names
    assert psnr(truth.x, learnt.x)[0] > psnr(truth.x, alone.x)[0] + 1


@pytest.fixture
def sparse(task, digits) -> ShadowClient:
    """Clients of four digits, 256 pixels, that send a hundredth of every layer: 222 values."""
    public = Examples(digits.x[:1000], digits.y[:1000])
    return ShadowClient(task, public, defenses="top-k", batch_size=4, raw={"top-k.keep": 0.01})


def test_fewer_values_than_pixels_are_explained_by_anything_and_settle_nothing(task, batch, sparse) -> None:
    """The descent explains all that arrived by images that nobody has; who knows public ones is far ahead."""
    truth = batch(0, 4)
    view = sparse.attacked(truth.x, truth.y)
    short = dataclasses.replace(QUICK, passes=4 * 200)
    alone, learnt = run(view, task, short), run(view, task, short, shadow=sparse, learn=False)  # which takes long
    assert alone.objective < 1e-4 and score(alone, truth).psnr.mean < 14
    assert (alone.explained, alone.fit, learnt.explained, learnt.fit) == (False, None, False, None)
    assert score(learnt, truth).psnr.mean > score(alone, truth).psnr.mean + 4
    assert run(dataclasses.replace(sparse, defenses="none").attacked(truth.x, truth.y), task, short).explained


@dataclass(frozen=True)
class FewRows:
    """Clients of whose last layer five rows arrive, and nothing else: more values than pixels, of which one image is
    told and sixteen are not."""

    client: ShadowClient

    @property
    def public(self) -> Examples:
        return self.client.public

    def send(self, shown: Examples, draw: int, steps: int | None = None, batch_size: int | None = None) -> ServerView:
        view = self.client.send(shown, draw, steps, batch_size)
        kept = {name: torch.zeros_like(update, dtype=torch.bool) for name, update in view.update.items()}
        next(reversed([mask for mask in kept.values() if mask.ndim == 2]))[:5] = True
        update = {name: u * kept[name] for name, u in view.update.items()}
        return dataclasses.replace(view, update=update, shared=kept, labels=shown.y, defenses=("mine:ROWS",))


@pytest.mark.parametrize(("images", "told"), [(1, True), (16, False)])
def test_what_explains_an_update_is_confirmed_on_public_images(
    task, batch, sparse, images: int, told: bool, monkeypatch
) -> None:
    monkeypatch.setattr(portfolio, "CANDIDATES", (PLAIN,))
    truth, shadow = batch(0, images), FewRows(dataclasses.replace(sparse, defenses="none", batch_size=images))
    view = shadow.send(Examples(truth.x, truth.y), 10_000)
    assert determined(view, task)
    short = dataclasses.replace(QUICK, passes=images * 800)
    case = Case(view, task, short, stream(0, purpose="attack"), math.inf)
    assert portfolio.confirmed(case, (PLAIN,), shadow) is told
    assert run(view, task, short).explained and run(view, task, short, shadow=shadow, learn=False).explained is told
