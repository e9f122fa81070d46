"""What an attacker can prove of every defense with an ε, beside what the ledger prints.

The game: a worst-case example, whose gradient is far longer than the clip and always of one direction, is present or
replaced by nothing; the server knows all else, sees every step's noised gradient by itself, and scores the logarithm of
the likelihood ratio. The real sampler and the real chain answer it (``tasks.examples.poisson_batches``,
``privacy.chain.observe``). One run: one update of the real local training (``strategies.round.local.local_update``) on
canaries with orthogonal gradients, each of which a fair coin included or blanked; the server guesses the coins. How
scores become a lower bound on ε is ``privacy/ledger/empirical.py``.

Every game is played against broken builds, too, while the ledger is told nothing of it: there a bound has to come out
above the ledger's ε, and from a game without an example none at all.

    prunella reproduce epsilon
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from prunella.benchmarks.engine.claim import Claim, Found, Measure, Plot, Settings, declared
from prunella.benchmarks.engine.inprocess import quiet
from prunella.core.randomness import PrivateGenerator, rehearsal, stream
from prunella.core.trees import full_mask
from prunella.privacy import DEFENSES
from prunella.privacy.accounting import Accountant, Charge, epsilon
from prunella.privacy.chain import Chain, build_chain, observe, start
from prunella.privacy.defense import Step
from prunella.privacy.ledger.empirical import from_game, if_normal, one_run, right_guesses
from prunella.strategies.round.local import Procedure, Received, local_update
from prunella.tasks.examples import Examples, poisson_batches
from prunella.tasks.training import Sgd

WIDTH = 8  # weights of the game: fed-spa restricts examples to some of them
LOUD = 1e4  # length of an example's gradient before it is clipped to 1
PRIVATE = tuple(name for name, entry in DEFENSES.items() if entry.private)
GUESSES = (10, 20, 50, 100, 200, 500, 1000)
DELTA, COARSE = 1e-5, 0.1  # the run's default, and one at which so many trials see all that there is to see
Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """What the ledger is told: noise multiplier, sampling rate 1 / ``rows``, steps."""

    noise: float
    rows: int
    steps: int


@dataclass(frozen=True)
class Build:
    """How the mechanism departs from what the ledger is told.

    ``noise`` is the share of the noise that is really added. ``clip`` is how long an example may be, where noise and
    ledger count on 1. ``reused``: a second request, in which the example has no gradient, gets the same noise.
    ``whole``: batches hold every example instead of a sample. ``signal`` False: the example is never there.
    """

    noise: float = 1.0
    clip: float = 1.0
    reused: bool = False
    whole: bool = False
    signal: bool = True


SETTINGS = (Setting(1.0, 1, 1), Setting(2.0, 4, 8))
BUILDS = {
    "as it is": Build(),
    "no example": Build(signal=False),
    "clip twice as long": Build(clip=2.0),
    "not clipped": Build(clip=LOUD),
    "noise reused": Build(reused=True),
    "no sampling": Build(whole=True),
    "no noise": Build(noise=1e-30),
}


def claimed(setting: Setting, delta: float, accountant: Accountant) -> float:
    """What the ledger says."""
    return epsilon([Charge("", setting.noise, 1 / setting.rows, setting.steps)], delta, accountant)


def _chain(name: str, setting: Setting, build: Build) -> Chain:
    multiplier = setting.noise * build.noise / build.clip
    return build_chain([name], {f"{name}.clip": build.clip, f"{name}.noise-multiplier": multiplier})


# ---- the game


def _step(batch: Tensor, number: int) -> Step:
    """A step whose examples have the gradients ``batch`` [b, WIDTH]."""
    like = {"w": torch.zeros(WIDTH)}
    single = [{"w": batch}] if len(batch) else []
    return Step(like, full_mask(like), number, 1, lambda: iter(single), lambda: ("w", batch, batch))


def _answers(chain: Chain, batches: Sequence[Tensor], noise: PrivateGenerator) -> Tensor:
    """The gradients [steps, WIDTH] that the server sees."""
    like = {"w": torch.zeros(WIDTH)}
    state = start(chain, torch.empty(0), like, {}, noise)
    seen = []
    for number, batch in enumerate(batches):
        gradient, state = observe(chain, like, like, state, noise, _step(batch, number))
        seen.append(gradient["w"])
    return torch.stack(seen).double()


def _score(answers: Tensor, seen: Tensor, setting: Setting, rate: float) -> float:
    """log P(answers | present) / P(answers | absent), all that the answers tell of a direction in ``seen`` weights."""
    along = answers[:, seen].sum(dim=1).numpy() / math.sqrt(max(1, int(seen.sum())))
    ratio = (2 * along - 1) / (2 * setting.noise**2)
    missed = math.log1p(-rate) if rate < 1 else -math.inf
    return float(np.logaddexp(missed, math.log(rate) + ratio).sum())


def _trial(chain: Chain, setting: Setting, build: Build, present: bool, seed: int, number: int) -> float:
    """One score of one client's ``setting.steps`` steps."""
    rows = 1 if build.whole else setting.rows
    examples = torch.zeros(rows, WIDTH)
    if present and build.signal:
        examples[0] = LOUD / math.sqrt(WIDTH)
    labels = torch.zeros(rows, dtype=torch.int64)
    purpose = f"{chain.names} {setting} {build} {present}"
    sampler = rehearsal(seed, round=number, purpose=f"batches {purpose}")
    batches = [b.x for b in poisson_batches(Examples(examples, labels), 1, setting.steps, sampler)]
    answers = _answers(chain, batches, rehearsal(seed, round=number, purpose=f"noise {purpose}"))
    seen = answers[0] != 0
    if build.reused:
        silent = [torch.zeros_like(batch) for batch in batches]
        answers = answers - _answers(chain, silent, rehearsal(seed, round=number, purpose=f"noise {purpose}"))
    return _score(answers, seen, setting, 1 / rows)


def play(name: str, setting: Setting, build: Build, trials: int, seed: int) -> tuple[Scores, Scores]:
    """The scores of ``trials`` trials with the example and of as many without."""
    chain = _chain(name, setting, build)
    sides = [[_trial(chain, setting, build, side, seed, n) for n in range(trials)] for side in (True, False)]
    return np.array(sides[0]), np.array(sides[1])


# ---- one run


class _TwoClasses(nn.Module):
    """Linear, without bias: an image of one pixel has a gradient of one direction, whatever the weights are."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.layer = nn.Linear(pixels, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x.flatten(1))
        return logits


def canary_scores(
    name: str, setting: Setting, build: Build, canaries: int, seed: int, number: int = 0
) -> tuple[Scores, NDArray[np.bool_]]:
    """One update's scores of ``canaries`` examples, and which of them a fair coin had included."""
    purpose = f"{name} {setting} {build} {canaries}"
    coins = torch.rand(canaries, generator=stream(seed, round=number, purpose=f"coins {purpose}")) < 0.5
    shown = coins if build.signal else torch.zeros_like(coins)
    examples = Examples((LOUD * torch.diag(shown.float())).view(-1, 1, 1, canaries), torch.zeros(canaries).long())
    batch = canaries if build.whole else max(1, canaries // setting.rows)
    module, chain = _TwoClasses(canaries), _chain(name, setting, build)
    params = {key: torch.zeros_like(tensor) for key, tensor in module.named_parameters()}
    rate = 1e-6 * batch / LOUD  # so slow that no step changes what the next one sees
    procedure = Procedure(module, Sgd(rate), chain, batch)
    sampler, noise = (rehearsal(seed, round=number, purpose=f"{what} {purpose}") for what in ("batches", "noise"))
    sent = local_update(
        procedure,
        Received(params, full_mask(params), {}),
        poisson_batches(examples, batch, setting.steps, sampler),
        start(chain, examples.x, params, {}, noise),
        noise,
    )
    update = sent.outgoing.update["layer.weight"].double() * (batch / rate)
    kept = (update != 0).sum(dim=0).clamp(min=1)
    return ((update[0] - update[1]) / kept.sqrt()).numpy(), coins.numpy()


def guess(
    name: str, setting: Setting, build: Build, canaries: int, seed: int, confidence: float = 0.95
) -> dict[str, float]:
    """One run's bound. How many coins to guess is chosen on a rehearsal, with other coins and other noise."""

    def bound(run: tuple[Scores, NDArray[np.bool_]], guesses: int) -> float:
        return one_run(right_guesses(*run, guesses), guesses, canaries, DELTA, confidence)

    rehearsal, run = (canary_scores(name, setting, build, canaries, seed, number) for number in (1, 0))
    guesses = max((g for g in GUESSES if g <= canaries // 2), key=lambda g: bound(rehearsal, g))
    scores, coins = run
    found = {"guesses": guesses, "right": right_guesses(scores, coins, guesses), "epsilon": bound(run, guesses)}
    if setting.rows == 1:
        found["if_normal"] = if_normal(scores[coins], scores[~coins], DELTA, confidence)
    return found


# ---- all of it


def measure(settings: Settings, seed: int, data: Path | None) -> Found:
    """A cell: every build of one defense at one setting, bounds at 95 %; broken builds get a fifth of the trials."""
    name, setting = settings["defense"], Setting(settings["noise"], settings["rows"], settings["steps"])
    trials, canaries = settings["trials"], settings["canaries"]
    with quiet():  # an accountant names the orders that it leaves out
        ledger = {"rdp": claimed(setting, DELTA, "rdp")}
        ledger |= {"pld": claimed(setting, DELTA, "pld"), "pld_coarse": claimed(setting, COARSE, "pld")}
        found: Found = {}
        for label, build in BUILDS.items():
            if build.whole and setting.rows == 1:
                continue
            scores = play(name, setting, build, trials if build == Build() else max(4, trials // 5), seed)
            row = {**ledger, "game": from_game(*scores, DELTA), "game_coarse": from_game(*scores, COARSE)}
            if setting.rows == 1:
                row["if_normal"] = if_normal(*scores, DELTA)
            if not build.reused:
                run = guess(name, setting, build, canaries, seed)
                row |= {f"one_run_{key}" if key == "if_normal" else key: value for key, value in run.items()}
                row["one_run"] = row.pop("epsilon")
            found[label] = row
    return found


def table(
    defenses: Sequence[str] = PRIVATE, trials: int = 20_000, canaries: int = 2000, name: str = "epsilon"
) -> Claim:
    """A table of these defenses."""
    common = {"trials": trials, "canaries": canaries}
    cells = tuple({"defense": d, **dataclasses.asdict(s), **common} for d in defenses for s in SETTINGS)
    return declared(
        f"""{name} | Prunella | docs/defenses.md | what an attacker can prove of every defense with an ε, beside
        what the ledger prints
        small: ε at δ = {DELTA} (last two columns: {COARSE}), and the least that was proven at 95 %.""",
        Measure("epsilon-games", measure),
        "defense noise rows steps: build",
        "rdp 2 ε rdp; pld 2 ε pld; game 2 game; if_normal 2 game, if normal; one_run 2 one run; "
        "one_run_if_normal 2 one run, if normal; pld_coarse 2 ε pld, δ 0.1; game_coarse 2 game, δ 0.1",
        Plot(("game",), split=0),
        small=cells,
        seeds=(0,),
    )


EPSILON_TABLE = table()
