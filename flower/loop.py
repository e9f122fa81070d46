"""``protected``: the defenses that touch batches or gradients, inside the training loop of anybody's app.

    guard = protected(msg, context, model)
    for x, y in loader:
        guard.step(x, y, loss, optimizer)

``guard.step`` shows the batch to the data defenses, takes the gradient of ``loss(model(x), y)``, puts it through the
gradient defenses and steps the optimiser, as Prunella's own client does (``strategies.round.local``). In a loop of
one's own, ``guard.images(x)`` is what training may see of a batch, and ``guard.gradients()`` stands between
``backward()`` and ``optimizer.step()``. Without a defense of the loop both do what the plain lines did. What a pruning
scheme has clients do is done here, too (``flower.scheme``); weights that the server pruned stay zero after every step.
The guard closes with the answer, or earlier, after ``with protected(msg, context, model) as guard:``.

*Needs.* ``flower.defend.Defend`` among the app's mods. A data defense is fitted on all images once: give them, or a
loader of (x, y), as ``data``. Defenses of single examples (dp-sgd, Soteria) need ``guard.step``.

*ε.* Each step is charged to the site's account before its batch is looked at. What a loader of one's own yields is no
Poisson sample, so a step counts without amplification; an example may stand in a batch once, so that two rows that are
the same stop the update (of copies that were augmented, or of mixed images, nothing is seen). ``for x, y in
guard.loader(loader)`` draws Poisson batches of the same expected size from the loader's dataset, and counts as such.

*Random numbers.* Under an ε no example's may depend on which others are there: a step has one dropout mask, and
``guard.loader`` a seed for each row. A loader of one's own has drawn before: one that augments at random has no ε.

*Planted models.* Before every batch the model is asked, as Prunella's own client asks it (``client.planted``), whether
it would tell single examples apart (``flower.question``). One that was sent so is refused; where training made it so,
gradients are zero from there on. Where batches are no images, or not shown, weights alone are looked at, once.

*Checked:* the model is the one received when the guard opens, nothing but guarded steps moves it until the guard
closes, and what the app answers is the model as the guard left it. Else the message is refused. An ``optimizer.step()``
of PyTorch's is seen by hooks: it needs a ``guard.gradients()`` of its own. An update that is written out by hand
(``p -= rate * p.grad``) is not.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from flwr.app import Context, Message
from torch import Tensor, nn
from torch.func import functional_call

from prunella.core.errors import ConfigError, DefenseError, PrunellaError
from prunella.core.trees import Tree, to_device
from prunella.flower.charged import Batch, ChargedSteps, answer_of, has_twins, rows_of
from prunella.flower.handled import HANDLED, Handled, resumed, wide
from prunella.flower.legacy import positions, unknown_array
from prunella.flower.moved import MovedBy
from prunella.flower.notices import tell_kept, tell_own_loader
from prunella.flower.planned import Accuracy, begin_scheme
from prunella.flower.question import StepQuestion
from prunella.flower.scheme import Settled
from prunella.flower.single import require_single_gradients, warn_of_joint_loss
from prunella.privacy.chain import fit, fitted_to, observe, present
from prunella.privacy.channel import ChannelSettings
from prunella.privacy.defense import DataDefense, Step, StepDefense
from prunella.privacy.ledger.ledger import digest
from prunella.tasks.per_example import per_example_gradients, require_examples_apart, require_unmixed
from prunella.tasks.sensitivity import representation_sensitivity

logger = logging.getLogger(__name__)
Loss = Callable[[Any, Tensor], Tensor]
TOKENS = "for anything else choose a defense of gradients or updates, such as priprune or dgp"
TWINS = (
    "two rows of a batch are the same: under an ε no example may stand in a batch twice, as a sampler that draws with "
    "replacement has it: take guard.loader(loader), or shuffle"
)
FAILED = "a step under an ε failed; this client's own log says why"


def digest_of(images: Tensor) -> str:
    """Of all images, in whatever order a loader gave them."""
    return digest([], " ".join(sorted(digest([{"x": image}], "") for image in images)))


def images_of(batch: Any) -> Tensor:
    """The images of a loader's batch: the first of (x, y), or the one tensor of a dict that can be. ``ConfigError``."""
    if not isinstance(batch, Mapping):
        first: Tensor = batch[0]
        return first
    found = [
        each for each in batch.values() if isinstance(each, Tensor) and each.is_floating_point() and each.dim() > 2
    ]
    if not found:
        what = f"the loader's batches have no images, only {', '.join(map(str, batch))}"
        raise ConfigError(f"protected: {what}: {TOKENS}")
    if len(found) != 1:
        raise ConfigError(
            "protected: which of a batch are the images? Give all of them as a tensor in place of the loader"
        )
    return found[0]


class Guard:
    """The defended steps of one message; made by ``protected``."""

    def __init__(self, work: Handled, model: nn.Module, data: Any, accuracy: Accuracy | None) -> None:
        self._work, self._model, self._chain = work, model, work.site.chain
        self._names = positions(model, work.received)  # of messages, by the module's
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._params = {self._names.get(name, name): p for name, p in trained.items()}
        if odd := sorted(self._params.keys() - work.received.keys()):
            raise work.refuse(unknown_array(odd[0], work.received))
        work.tracked = tuple(dict.fromkeys([*work.tracked, *self._params]))
        work.parameters = frozenset(self._params)
        self._received = {n: wide(work.received[n]).to(p.device) for n, p in self._params.items()}
        self._mask = {n: work.mask[n].to(p.device) for n, p in self._params.items()}
        self._require_received()
        self._mask = begin_scheme(work, model, self._params, self._received, self._mask, accuracy)
        self._draws = work.site.generator(work.question, "loop")
        self._require_examples_apart()
        self._state = resumed(self._chain, self._received, work.state)
        self._fit(data)
        self._steps, self._shown = ChargedSteps(work), False
        self._question = StepQuestion(model, work.site.generator(work.question, "planted"))
        self._number = 0  # of the round's next step
        self._loss_seen = False  # that it depends on the model's answer alone
        self._failed = False  # in the middle of a step, or out of a with
        hides_images = any(isinstance(link.defense, DataDefense) for link in self._chain.links)
        self._moved = MovedBy(work, model, self._params, hides_images, self._stepped)

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._failed = self._failed or kind is not None
        if kind is None:
            self.close()
        self.release()

    def _fit(self, data: Any) -> None:
        """Fit what is fitted on images, and what bounds nats of them anew where they are others than before."""
        for link in self._chain.links:
            bounds = isinstance(link.settings, ChannelSettings) and data is not None
            if not isinstance(link.defense, DataDefense) or (self._state[link.name] and not bounds):
                continue
            if data is None:
                fix = "write protected(msg, context, model, loader)"
                raise self._work.refuse(ConfigError(f"{link.name} is fitted on all images: {fix}"))
            images = data if isinstance(data, Tensor) else torch.cat([images_of(batch) for batch in data])
            flat = images.dim() < 3 and link.name == "channel-personalized"  # whose map has rows and columns
            if not images.is_floating_point() or flat or (images.dim() != 4 and link.name == "ats"):
                raise self._work.refuse(ConfigError(f"{link.name} changes images; {TOKENS}"))
            of = digest_of(images)
            if not self._state[link.name] or not fitted_to(self._state[link.name], of):
                fitting = self._work.site.generator("fit", link.name)
                self._state[link.name] = fit(link.defense, images, fitting, of)

    def _require_received(self) -> None:
        for name, p in self._params.items():
            given = self._work.given.get(name, self._work.received[name])
            if not torch.equal(p.detach().cpu(), given.to(p.dtype)):
                fix = "load the message's arrays, then train inside"
                raise self._work.refuse(DefenseError(f"protected: {name} is not as received: {fix}"))

    def _require_examples_apart(self) -> None:
        """Before anything is charged: under an ε no layer may mix a batch's examples."""
        if self._chain.private is not None:
            self._require(require_unmixed, self._model)
            tell_kept(self._work.site, self._model, {n for n, at in self._names.items() if at in self._work.received})

    def _require(self, check: Callable[..., None], *args: Any) -> None:
        """What a check refuses is refused in its words."""
        try:
            check(*args)
        except DefenseError as error:
            raise self._work.refuse(ConfigError(str(error))) from error

    def _require_loss_of_answers(self, x: Batch, y: Tensor, loss: Loss) -> None:
        """Before a step is charged: examples' gradients are of ``loss(model(x), y)``, in which the weights of the model
        stand for constants wherever else they appear, and each is of its example alone."""
        if self._chain.private is None or self._loss_seen or not rows_of(x):
            return
        model, state = self._model, {name: b.clone() for name, b in self._model.named_buffers()}
        args, named = ((), dict(x)) if isinstance(x, Mapping) else ((x,), {})
        try:
            with torch.random.fork_rng(devices={p.device for p in self._params.values() if p.is_cuda}):
                with torch.no_grad():
                    answer = functional_call(model, state, args, named)
                value = loss(answer, y)
        except Exception:  # noqa: BLE001 - the step tells of it
            return
        if getattr(value, "requires_grad", False):
            what = (
                "under an ε a loss is of the model's answer and y: this one depends on weights as well (FedProx's "
                "term?), and what they add would be left out: leave it out, or choose a defense without an ε"
            )
            raise self._work.refuse(ConfigError(what))
        try:
            self._require(require_examples_apart, model, self._own(), {}, x, y, loss)
        except PrunellaError:
            raise
        except Exception:  # noqa: BLE001 - the step tells of it
            return
        self._loss_seen = True
        warn_of_joint_loss(self._work.site, answer, y, loss)

    def _require_single_gradients(self, x: Batch, y: Tensor, loss: Loss) -> None:
        """Before anything is charged: of random examples in the shapes of these, each has a gradient."""
        if self._chain.private is not None and not self._number and not isinstance(x, Mapping):
            require_single_gradients(self._work, self._model, self._own(), x, y, self._steps.expected(x), loss)

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Pruned weights are zero again, and the scheme has its turn."""
        with torch.no_grad():
            for name, p in self._params.items():
                p.copy_(torch.where(self._mask[name], p, torch.zeros((), dtype=p.dtype, device=p.device)))
            moved = self._work.local.after_step({n: wide(p.detach()) for n, p in self._params.items()}, self._mask)
            if moved is not None:
                weights, self._mask = moved
                for name, p in self._params.items():
                    p.copy_(weights[name])
                self._work.mask = {**self._work.mask, **to_device(self._mask, "cpu")}
                optimizer.state.clear()  # no velocity of weights that are gone
                self._question.begins()
        self._moved.settled()
        if self._work.local.done:
            raise Settled("the first mask is made: leave this to Defend")

    def loader(self, loader: Any) -> Iterator[Any]:
        """Under an ε Poisson batches from the loader's dataset, as many and as large on average as the loader's; else
        the loader's own."""
        return self._steps.loader(loader)

    def images(self, x: Any) -> Any:
        """The batch [B, C, H, W] as training may see it. One of named tensors has no images: no defense changes it."""
        self._require_no_single_examples()
        return self._show(x)

    def _require_no_single_examples(self) -> None:
        if single := [link.name for link in self._chain.links if isinstance(link.defense, StepDefense)]:
            fix = "write guard.step(x, y, loss, optimizer)"
            raise self._work.refuse(ConfigError(f"{single[0]} works on single examples: {fix}"))

    def _show(self, x: Any) -> Any:
        self._steps.require_as_drawn(x)
        self._ask(x)
        self._moved.shows_images()
        self._steps.take()
        if self._chain.private is not None and not self._steps.poisson:
            tell_own_loader(self._work.site)
            if has_twins(x):
                logger.warning(TWINS)
                raise DefenseError(FAILED)
        self._shown = True
        if isinstance(x, Mapping):
            if changing := [link.name for link in self._chain.links if isinstance(link.defense, DataDefense)]:
                raise self._work.refuse(ConfigError(f"{changing[0]} changes images; {TOKENS}"))
            return x
        return present(self._chain, x, self._state, self._draws)

    def _ask(self, x: Batch) -> None:
        """A loop that goes on after a refusal is refused again."""
        if found := self._question.refused(x):
            told = f"the model would copy single images into its update ({', '.join(found)}): not trained"
            raise self._work.refuse(DefenseError(told))

    def gradients(self) -> None:
        """Replace every ``.grad`` by the defended gradient. Only for defenses that need nothing else of the step."""
        self._moved.require_unmoved()
        self._ask({})  # of a loop that shows no batch: weights alone
        if not self._shown and self._moved.hides_images:
            raise ConfigError("guard.gradients() without guard.images(x) before it: the batch was not defended")
        self._require_no_single_examples()
        if not self._steps.taken:
            self._steps.take()
        self._observe(None)
        self._moved.takes_gradients()

    def step(self, x: Batch, y: Tensor, loss: Loss, optimizer: torch.optim.Optimizer) -> Tensor | None:
        """One local step on the batch x [B, ...], or tensors by the names that the model takes them under, and y [B]:
        ``loss(model(x), y)``. Returns its loss, or None under an ε, which covers no loss."""
        self._moved.require_unmoved()
        if self._failed and self._chain.private is not None:  # to leave out those that fail would tell which do
            raise DefenseError(FAILED)
        self._require_loss_of_answers(x, y, loss)
        self._require_single_gradients(x, y, loss)
        self._failed = True
        shown = self._show(x)
        try:
            value = self._computed(shown, y, loss)
        except Exception as error:
            if self._chain.private is None:
                raise
            raise DefenseError(FAILED) from error
        self._steps.poisson = 0.0
        optimizer.step()
        if not self._moved.used():  # no optimiser of PyTorch's, or not of all parameters
            self._stepped(optimizer)
        self._failed = False
        return value

    def _computed(self, shown: Batch, y: Tensor, loss: Loss) -> Tensor | None:
        self._model.zero_grad(set_to_none=True)
        value = None
        if self._chain.private is None:
            value = loss(answer_of(self._model, shown), y)
            value.backward()  # type: ignore[no-untyped-call]
        self._observe(self._step_of(shown, y, loss))
        return None if value is None else value.detach()

    def _own(self) -> Tree:
        """The weights by the module's names."""
        return {n: wide(self._params[came].detach()) for n, came in self._names.items() if came in self._params}

    def _step_of(self, x: Batch, y: Tensor, loss: Loss) -> Step:
        params, own = {name: wide(p.detach()) for name, p in self._params.items()}, self._own()
        expected, model = self._steps.expected(x), self._model

        def per_example() -> Iterator[Tree]:
            for rows in per_example_gradients(model, own, {}, x, y, expected, loss):
                yield {self._names[name]: tensor for name, tensor in rows.items()}

        def representation() -> tuple[str, Tensor, Tensor]:
            if isinstance(x, Mapping) or not x.is_floating_point() or x.dim() != 4:
                raise self._work.refuse(ConfigError(f"soteria works on images; {TOKENS}"))
            name, features, norms = representation_sensitivity(model, own, {}, x)
            return self._names[name], features, norms

        return Step(
            params=params,
            mask=self._mask,
            number=self._number,
            batch=expected,
            per_example=per_example,
            representation=representation,
        )

    def _observe(self, step: Step | None) -> None:
        found = {
            n: wide(p.grad.to_dense()) if p.grad is not None else torch.zeros_like(self._received[n])
            for n, p in self._params.items()
        }
        defended, self._state = observe(self._chain, found, self._received, self._state, self._draws, step)
        for name, p in self._params.items():
            if self._question.ended:
                p.grad = torch.zeros_like(p)
            elif defended[name] is found[name]:  # no defense changed it: sparse, or None, it is the plain loop's
                continue
            elif p.grad is not None or self._chain.private is not None or bool(defended[name].any()):
                p.grad = defended[name].to(p.dtype)
        self._work.local.observe(defended)
        self._work.steps += 1
        self._number += 1
        self._moved.defended()
        self._shown = self._steps.taken = False

    def close(self) -> None:
        """Note the model as it is, once."""
        if self._work.left is not None:
            return
        self.release()
        if self._failed:
            raise DefenseError("protected: the loop failed, and the app answered all the same")
        self._moved.require_unmoved()
        self._moved.require_statistics()
        state = self._model.state_dict()  # tied weights under all their names
        own = {p.data_ptr() for p in self._params.values()}
        own |= {b.data_ptr() for b in self._model.buffers()} if self._moved.hides_images else set()
        held = {self._names.get(name, name): t for name, t in state.items() if t.data_ptr() in own}
        self._work.left = {name: t.detach().cpu().clone() for name, t in held.items()}
        self._work.state = {
            link: {t: to_device(v, "cpu") for t, v in trees.items()} for link, trees in self._state.items()
        }

    def release(self) -> None:
        """Look at no optimiser any more."""
        self._moved.release()


def protected(
    message: Message | None,
    context: Context | None,
    model: nn.Module,
    data: Tensor | Iterable[Any] | None = None,
    accuracy: Accuracy | None = None,
) -> Guard:
    """The guard of a ``train`` message's loop over ``model``, which holds the arrays received.

    ``data``, for defenses of images: all of them [N, C, H, W], or a loader of (x, y). ``accuracy``, for LotteryFL:
    of the model, the share of held-out examples that it labels right. A ``NumPyClient``, which sees neither message nor
    context, passes None for them. It closes with the answer, or at the end of a ``with``.

    Raises ``ConfigError`` without ``Defend`` around, ``DefenseError`` where a defense could not do its job.
    """
    work = HANDLED.get()
    if work is None or (context is not None and work.site.context.node_id != context.node_id):
        raise ConfigError("protected() without Defend: write ClientApp(mods=[Defend()])")
    if work.guard is not None:  # draws and charges are one guard's
        raise ConfigError("protected() was entered twice for one message: call it once")
    work.guard = Guard(work, model, data, accuracy)
    return work.guard
