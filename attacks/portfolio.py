"""The strongest of the attacks that match, solve, read or learn from a view, at a cost that the settings fix.

An audit is worth what its attack is worth. No single setting wins: signed Adam is far behind L-BFGS on smooth networks
and far ahead on ReLU with batch norm, the right weight of TV depends on the defense, and labels fixed into the wrong
step cost 20 dB. So

0. where squared gradients left beside a defended update, or batch norm's statistics of one batch, ``engine.beside`` is
   asked, and an image that explains these is the answer;
1. ``CANDIDATES`` whose predicate holds are asked: those that solve in full, those that descend as scouts, a few short
   descents each, until one explains the update. Scouts take the likeliest labels; where one image's label is open and
   none explains the update, the plain attack tries the others, as it does by itself.
   Where none explains an update that nothing defends, it is read as of a client that trained or sent otherwise than
   the view says: under another loss, by another optimizer, with the weights in it, normalised (``engine.otherwise``);
2. where several images' labels are open, ``engine.label_search`` looks for the right one of each image and step, with
   a ``shadow``, whose images are public, in their principal components;
3. with a ``shadow``, images are sought in these components under the best labels found, from a new start;
4. the most promising go on, those from the components in pixels, among them always the first that descends (``sgi``
   without TV), and the best is polished, by L-BFGS where Adam found it, by Adam where L-BFGS did;
5. with a ``shadow``, and where nothing explains the update, ``LEARNT`` attacks are asked, too.

What is best is said without the truth: by how well a guess explains the direction of the update on a tenth of the
coordinates that arrived. Scouts do not descend on these, so that an image fitted to noise does not win; what solves in
full has the whole update. TV decides between equals. An update that nobody can explain is also met by images that
nobody has, so there a shadow decides: the same steps are rehearsed on public images behind the same chain, where the
truth is known, and what has the highest mean PSNR there is taken: whose answer, and whether as a scout, gone on or
polished. A learnt attack's own figure on public images that it did not learn from is compared with that. What was far
better explained there than here says nothing of here: there the descent got to the bottom, and here it did not; an
earlier stage of it, which explained no more there than it does here, may. What was not asked there is taken where it
misses a hundredth or less, and less than all others.
Behind a defense that adds noise to images, what explains the update is the noisy image: there the rehearsal and the
learnt attacks are asked all the same, and the PSNR on public images decides.
``Reconstruction.found_by`` names what won; ``objective`` is one minus the cosine on that tenth or, where the gradient
cannot be matched, the winner's own.

Where a client used more images than ``max_images``, a guess of the first descent stands for several. Beside it only the
label search is asked, for up to ``WHOLE`` images.

Threat model: that of the candidates, all honest but curious. What it may cost is counted in images that pass the model
(``passes``, ``label_passes``), so that the answer does not depend on the clock; ``seconds`` is a limit on top of that.
Where it is short of the passes, every candidate gets its share of what can be done in the time that is left, and the
answer depends on the machine, as does a label search that would take more than half of that time: unless it explains
the update, such an answer says that it was cut short. It cannot be resumed.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from torch import Generator, nn
from torch.nn.modules.batchnorm import _BatchNorm

from prunella.attacks import components
from prunella.attacks.april import learnt_positions
from prunella.attacks.engine.beside import told
from prunella.attacks.engine.case import FIXED, MOST, POLISHED, SOLVED, Candidate, Case, Found, Key, matchable
from prunella.attacks.engine.choice import AS_WELL, Gain, Gains, best_of, chosen, expected, explains, settled
from prunella.attacks.engine.descent import optimizer_name
from prunella.attacks.engine.inversion import EXPLAINED
from prunella.attacks.engine.latent import PIXELS, Latent
from prunella.attacks.engine.otherwise import attempted, read_otherwise
from prunella.attacks.engine.parts import IN_PART, alone, only_part, with_parts
from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.engine.shadow import Shadow
from prunella.attacks.rehearsal import mean_psnr, played, scored
from prunella.attacks.score.control import PSNR_FLOOR
from prunella.core.config import Count, Positive
from prunella.core.errors import AttackError
from prunella.core.types import Reconstruction, ServerView
from prunella.tasks.task import Task

_PLAYED = 2  # public images that candidates are rehearsed on, in views of as many as the client's
_PLAYING = 0.4  # of the time that is left goes into that, at most
_LEAST = 20  # iterations of a scout
_GO_ON = 2  # scouts that go on
_CONFIRMED = 0.15  # of the budget: what confirming an explanation may cost
_REHEARSED = 0.5  # of what a label search may cost: in a rehearsal
_APART = 32  # images that spear is asked for, at most: of 64 it takes minutes
_READING = 0.3  # of the time that is left: what reading all images of a client may take
_ONE = 0.1  # of the time and the passes: what looking for one image of several may cost
WHOLE = 256  # images of a client that are searched together


@dataclass(frozen=True)
class Portfolio:
    """Every attack that fits the view, for a cost that is fixed; the best is kept and named."""

    mask_aware: ClassVar[bool] = True
    #: of images through the model, forth and back: what is spent, the same on every machine
    passes: Count = 32_000
    label_passes: Count = 64_000  #: the same, for finding which label belongs to which image and local step
    seconds: Positive = 600.0  #: limit on top of that; an answer that is cut short depends on how fast the machine is
    iterations: Count = 600  #: most iterations of a descent
    restarts: Count = 2  #: random starts of a candidate
    max_images: Count = 16  #: images in memory at a time


PLAIN = Candidate("sgi", matchable)
READERS = (
    Candidate("extraction", lambda s: s.has(nn.Linear) and not s.single and len(s.target.plan.batches) == 1),
    Candidate("spear", lambda s: s.has(nn.Linear) and not s.single and s.target.plan.images <= _APART),
)
"""Those that take a layer apart, image by image, and are asked for all images of a client, however many these are."""
CANDIDATES = (
    Candidate("april", lambda s: s.single and matchable(s) and bool(learnt_positions(s.target.module))),
    *READERS,
    Candidate("representation", lambda s: s.has(nn.Linear) and (len(s.target.plan.batches) == 1 or not matchable(s))),
    Candidate("r-gap", lambda s: matchable(s) and s.single and s.target.support is None and not s.has(nn.ReLU)),
    PLAIN,
    Candidate("idlg", matchable, {"mask_aware": True}),
    Candidate("dlg", lambda s: matchable(s) and s.untold, {"mask_aware": True, "labels": "optimise"}),
    Candidate("sgi", matchable, {"tv": 0.01}),
    Candidate("sgi", lambda s: matchable(s) and s.open_labels, {"labels": "optimise", "tv": 0.01}),
    Candidate("sgi", matchable, {"tv": 0.2}),
    Candidate("gradinversion", lambda s: matchable(s) and s.has(_BatchNorm), {"mask_aware": True, "tv": 0.01}),
    Candidate("sgi", matchable, {"tv": 0.001}),
    Candidate("sgi", matchable, {"tv": 0.0001}),
)
"""In the order in which they are dropped from the end where the budget is short. One line adds an attack."""
LEARNT = (
    Candidate("inverter", lambda s: s.disturbed or not s.single, {"shadows": 300}),
    Candidate("denoise", lambda s: s.disturbed and s.single and matchable(s)),
)
"""Those that learn from a shadow, asked where no candidate explains the update, or the images were noisy. Their
objective is the mean squared error on public images that they did not learn from."""
# Asked where an update is read otherwise than the view says.
PLAINLY = ("april", "extraction", "spear", "representation", PLAIN.name)
WEAK = (Candidate("sgi", lambda setting: True),)


def done(case: Case, found: Sequence[Found]) -> bool:
    """Whether nothing more is asked: the update is explained, and by no other images, or there is something and the
    time is over."""
    return settled(found, case.ambiguous) or (bool(found) and case.budget.late())


def explore(case: Case, candidates: Sequence[Candidate], share: float) -> list[Found]:
    """Every candidate once, until one explains the update: those that are solved in full, and scouts in that share of
    the budget."""
    found: list[Found] = []
    for candidate in candidates:
        if not candidate.descends and not done(case, found):
            found += attempted(partial(case.solve, candidate, share=share))
    scouts, paid = [c for c in candidates if c.descends], int(share * case.budget.left())
    scouts = scouts[: max(1, paid // _LEAST - case.attack.restarts)]
    each = max(1, min(MOST, case.attack.iterations, paid // max(1, sum(case.starts(c) for c in scouts))))
    for candidate in scouts:
        if not done(case, found):
            # The plain attack goes its whole way at once: whatever the clock cuts off, the portfolio is not below it.
            long = max(each, case.iterations(0.1, case.attack.iterations)) if candidate is PLAIN else each
            found += attempted(partial(case.scout, candidate, long))
    if case.setting.single and case.view.labels is None and PLAIN in scouts and not done(case, found):
        # A defense that withholds the last layer's largest values hides the label: scouts take the likeliest alone.
        found += attempted(partial(case.solve, PLAIN, share=share))
    return found


def by_labels(
    case: Case, found: Sequence[Found], latent: Latent | None, share: float = 1.0, seconds: float | None = None
) -> list[Found]:
    """What a search for the labels of several images finds, in the components of public images where there are any."""
    if settled(found, case.ambiguous) or not case.setting.open_labels or not matchable(case.setting):
        return []
    return attempted(partial(case.label_search, latent or PIXELS, share, seconds))


def components_of(case: Case, shadow: Shadow | None) -> Latent | None:
    """The principal components of a shadow's public images, where these are enough and a gradient can be matched."""
    if shadow is None or not matchable(case.setting):
        return None
    try:
        device = case.fitted.flat.device
        return components.coordinates(shadow.public, case.task, components.Components(), case.generator, device)
    except (AttackError, RuntimeError):
        return None


def by_components(case: Case, found: Sequence[Found], latent: Latent | None, share: float) -> list[Found]:
    """What is found in the principal components of public images, with the view's labels or those of the best of
    ``found``."""
    named = [each for each in found if each.answer.y is not None and len(each.answer.y) == case.images]
    labels = case.view.labels[: case.images] if case.view.labels is not None else None
    labels = best_of(named).answer.y if labels is None and named else labels
    if labels is None or done(case, found) or latent is None:
        return []
    settings = components.Components(iterations=case.iterations(share, case.attack.iterations))
    store = ResumeStore(stopped=case.budget.late)

    def attempt() -> list[Found]:
        z = components.drawn(latent, 1, case.images, case.task, case.generator)
        begin = time.monotonic()
        answer = components.matched(case.fitted, settings, latent, z, labels[None], store)
        case.budget.spend(answer.iterations, time.monotonic() - begin)
        return [case.found("components", answer, FIXED, case.missed(answer))]

    return attempted(attempt)


def confirmed(case: Case, candidates: Sequence[Candidate], shadow: Shadow) -> bool:
    """Whether what explains the update of public images behind the same chain is these images. A defense may leave so
    little that it is not, however many values arrived. Where nothing explains it there, nothing is known."""
    for play in played(case, shadow, 1):
        play.found.extend(explore(play.case, candidates, _CONFIRMED))
        if explains(play.found):
            return mean_psnr(play.shown, best_of(play.found).answer) >= PSNR_FLOOR
    return False


def rehearsed(case: Case, candidates: Sequence[Candidate], shadow: Shadow) -> dict[Key, Gain]:
    """The gains of every candidate, of those that lead when they have gone on, and of the best of these when it is
    polished."""
    short, case.budget.end = case.budget.short, time.monotonic() + _PLAYING * (case.end - time.monotonic())
    plays = played(case, shadow, max(1, _PLAYED // case.images))
    for play in plays:
        play.found.extend(explore(play.case, candidates, 0.15 / len(plays)))
        latent = components_of(play.case, play.others)
        play.found.extend(by_labels(play.case, play.found, latent, _REHEARSED / len(plays)))
        play.found.extend(by_components(play.case, play.found, latent, 0.15 / len(plays)))
    plays = [play for play in plays if play.found]
    gains = scored(plays) if plays else {}
    for number, play in enumerate(plays):
        play.found.extend(further(play.case, play.found, gains, 0.4 / (len(plays) - 0.4 * number)))
    gains = scored(plays) if plays else {}
    if gains:
        best = max(gains, key=lambda key: gains[key].psnr)
        for number, play in enumerate(plays):
            mine = [each for each in play.found if each.key == best]
            play.found.extend(polished(play.case, best_of(mine), 0.3 / (len(plays) - 0.3 * number)))
        gains = scored(plays)
    case.budget.short, case.budget.end = short, case.end  # whatever its own part was
    return gains


def learnt(case: Case, shadow: Shadow, gains: dict[Key, Gain]) -> list[Found]:
    """What the attacks that learn make of the view; ``gains`` gets their PSNR on public images."""
    found: list[Found] = []
    for candidate in (each for each in LEARNT if each.applies(case.setting) and not case.budget.late()):
        for each in attempted(partial(case.solve, candidate, shadow)):
            gains[each.key] = Gain(-10 * math.log10(max(each.answer.objective, 1e-10)))
            found.append(each)
    return found


def further(case: Case, found: Sequence[Found], gains: Gains, share: float) -> list[Found]:
    """What the most promising find when they go on, in that share of the budget."""
    leading: dict[str, Found] = {}  # the best of each, best first
    for each in sorted((each for each in found if each.settings is not None), key=lambda each: each.missed):
        leading.setdefault(each.by, each)
    order = sorted(leading.values(), key=lambda each: -expected(each, gains))
    going = [e for e in order if e in order[:_GO_ON] or e.by.removesuffix(f", {case.how}") == PLAIN.name]
    going = order[:1] if settled(found, case.ambiguous) else going
    went = list[Found]()
    for place, each in enumerate(going):
        most = case.iterations(share / (1 - share * place / len(going)) / len(going), case.attack.iterations)
        went += attempted(partial(case.go_on, each, {"iterations": most}))
        if went and best_of(went).missed <= SOLVED and not case.ambiguous:
            break
    return went


def polished(case: Case, best: Found, share: float) -> list[Found]:
    """What a descent of the other kind makes of the best, in that share of the budget."""
    if not matchable(case.setting):
        return []
    by_adam = best.settings is not None and optimizer_name(best.settings.optimizer, case.fitted.module) == "adam"
    changes: dict[str, Any] = {"optimizer": "lbfgs", "objective": "euclidean", "tolerance": SOLVED}
    if not by_adam:
        changes = {"optimizer": "adam", "objective": "cosine", "signed": True, "learning_rate": 0.01}
    if best.settings is not None and best.settings.labels == "optimise":  # now they are fixed, into the steps found
        fixed = {"iterations": case.iterations(share / 2, case.attack.iterations), "labels": "infer"}
        best = best_of([best, *attempted(partial(case.go_on, best, fixed))])
    changes["iterations"] = case.iterations(share, case.attack.iterations)
    return attempted(partial(case.go_on, best, changes, POLISHED))


def finish(case: Case, found: list[Found], gains: Gains) -> Found:
    """The most promising go on, and the best is polished."""
    found = [*found, *further(case, found, gains, 0.6)]
    best = chosen(found, gains, case.doubted)
    if best.missed <= SOLVED:
        return best
    return chosen([*found, *polished(case, best, 0.9)], gains, case.doubted)


def sought(case: Case, candidates: Sequence[Candidate], shadow: Shadow | None, learn: bool) -> Found | None:
    """The best answer of all, by the steps that the module names; the last one if it may ``learn``."""
    share = 0.15 if case.setting.open_labels else 0.3
    case.parts += attempted(lambda: alone(case, _ONE))  # first: what is asked before may take all the time there is
    found, gains = explore(case, candidates, share), dict[Key, Gain]()
    plainly = [each for each in candidates if each.name in PLAINLY]
    found = read_otherwise(case, found, lambda other, part: explore(other, plainly, part * share))
    if shadow is not None and case.setting.disturbed and settled(found, case.doubted):
        case.ambiguous = not confirmed(case, candidates, shadow)
        found += explore(case, candidates, share) if case.ambiguous else []
    latent = None if done(case, found) else components_of(case, shadow)
    found += by_labels(case, found, latent)
    found += by_components(case, found, latent, 0.3)
    plain = not case.how  # rehearsals are of updates that are read as the view says
    if found and shadow is not None and plain and not settled(found, case.doubted) and not case.budget.late():
        gains = rehearsed(case, candidates, shadow)
    if not found:  # the layer cannot be read: better a weak attack than none
        found = explore(case, WEAK if candidates else [], 0.8)
    if not found:
        return None
    solved = best_of(found).missed <= SOLVED and not case.doubted
    best = best_of(found) if solved else finish(case, found, gains)
    if shadow is None or not learn or settled([best], case.doubted) or case.budget.late():
        return best
    every = [best, *learnt(case, shadow, gains)]
    return chosen(every, gains, case.doubted) if plain else best_of(every)


def in_full(case: Case, attack: Portfolio, shadow: Shadow | None) -> list[Found]:
    """What is found of all of a client's images, up to ``WHOLE``, where there is time for it: by the label search or,
    where labels are known, in the components of public images."""
    whole = Case(case.said.view, case.task, dataclasses.replace(attack, max_images=WHOLE), case.generator, case.end)
    whole.budget.stopped = case.budget.stopped
    seconds = case.seconds() * whole.passes / case.passes  # reckoned: all images at once may need too much memory
    latent = components_of(whole, shadow)
    found = list[Found]()
    if case.setting.open_labels:
        found = by_labels(whole, [], latent, seconds=seconds)
    elif not whole.setting.merged and whole.time_for(whole.budget.left(), seconds):
        found = by_components(whole, [], latent, 1.0)
    case.budget.short = case.budget.short or whole.budget.short
    return found


def read_of_all(case: Case, attack: Portfolio) -> list[Found]:
    """What ``READERS`` find of all images, up to ``WHOLE``; of some of them is noted as parts of ``case``."""
    settings, end = dataclasses.replace(attack, max_images=WHOLE), case.end
    whole = Case(case.said.view, case.task, settings, case.generator.clone_state(), end)
    end = time.monotonic() + _READING * (case.end - time.monotonic())
    whole.budget.stopped = lambda: case.budget.late() or time.monotonic() >= end
    found = list[Found]()
    for candidate in READERS:
        if candidate.applies(whole.setting) and not done(whole, found) and not whole.budget.late():
            found += attempted(partial(whole.solve, candidate))
    case.parts += whole.parts
    return [each for each in found if not math.isinf(each.missed)]


def of_many(case: Case, attack: Portfolio, shadow: Shadow | None) -> Found | None:
    """What is read of all images, if that explains the update; else the best of the first descent, a guess of which
    stands for several images, and of what is found of them all. That may miss more: what stands for several matches
    none of them."""
    read = read_of_all(case, attack)
    if settled(read, case.doubted):
        return best_of(read)
    case.parts += attempted(lambda: alone(case, _ONE))
    merged = attempted(partial(case.solve, PLAIN))
    found = read if done(case, merged) else [*read, *in_full(case, attack, shadow)]
    if found and (not merged or best_of(found).missed <= AS_WELL * best_of(merged).missed):
        return best_of(found)
    return best_of(merged) if merged else None


def reconstruct(
    view: ServerView,
    task: Task,
    attack: Portfolio,
    generator: Generator,
    shadow: Shadow | None = None,
    deadline: float | None = None,
    stopped: Callable[[], bool] = lambda: False,
    learn: bool = True,
) -> Reconstruction:
    """The images [N, C, H, W] and labels [N] that the best candidate found. It ends with what it has at the
    ``deadline``, by ``time.monotonic``, or once it is ``stopped``. Without ``learn`` the ``LEARNT`` attacks are left
    out; a shadow still serves for components and rehearsals.

    Raises ``AttackError`` where no candidate finds anything.
    """
    end = min(time.monotonic() + attack.seconds, math.inf if deadline is None else deadline)
    case = Case(view, task, attack, generator, end)
    case.budget.stopped = stopped
    candidates = [each for each in CANDIDATES if each.applies(case.setting)]
    if (beside := told(case, shadow)) is not None:
        return dataclasses.replace(beside.answer, found_by=beside.by, explained=True, compared=True)
    if case.setting.merged and PLAIN in candidates:
        best = of_many(case, attack, shadow)
    else:
        best = sought(case, candidates, shadow, learn)
    if (best := best or only_part(case.parts)) is None:
        raise AttackError("no attack of the portfolio fits this view")
    if (best.missed > EXPLAINED or case.doubted) and matchable(case.setting):
        best = with_parts(best, case.parts)
    cut = case.budget.late() or (case.budget.short and not settled([best], case.doubted))
    answer = dataclasses.replace(best.answer, cut=cut, found_by=best.by)
    if not matchable(case.setting):  # only what was read of a layer is fitted, and values made up are read, too
        return dataclasses.replace(answer, compared=False)
    if best.stage == IN_PART:
        return dataclasses.replace(answer, objective=best.missed, explained=False, compared=False)
    if math.isinf(best.missed):
        return answer
    explained = settled([best], case.ambiguous)
    return dataclasses.replace(answer, objective=best.missed, explained=explained, compared=not case.ambiguous)
