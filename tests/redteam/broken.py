"""Builds with one promise taken out again: the positive controls. An attack that fails on them shows nothing."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from prunella.client.accounts import Accounts
from prunella.client.session import ServerRequest, Session
from prunella.core.errors import DefenseError
from prunella.core.randomness import PrivateGenerator, derived
from prunella.privacy.ledger.ledger import UNBOUNDED


class Twister(PrivateGenerator):
    """Noise of a ``torch.Generator``, which keeps 32 bits of its seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(bytes(32))
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).double()


@contextmanager
def seeded_noise(bits: int = 32) -> Iterator[None]:
    """Every request's noise comes from a seed of so many bits."""
    with patch.object(ServerRequest, "generator", lambda self, purpose: Twister(secrets.randbits(bits))):
        yield


@contextmanager
def late_charge() -> Iterator[None]:
    """A gradient that is not finite raises, and nothing was charged by then; the error says what it was."""
    mechanism, app = import_module("prunella.privacy.dp_sgd"), "prunella.client.app"
    norms = mechanism.example_norms

    def loud(gradients: Any) -> Tensor:
        found = norms(gradients)
        if not bool(torch.isfinite(found).all()):
            raise DefenseError("the gradient is not finite for some example")
        return found

    with (
        patch.object(mechanism, "example_norms", loud),
        patch(f"{app}.account", lambda session, *rest: (UNBOUNDED, session.accounts.ledger())),
        patch(f"{app}.charged", lambda *given: nullcontext()),
    ):
        yield


@contextmanager
def thin_digest() -> Iterator[None]:
    """The noise of an answer knows of no more than the client's key and what the draws are for."""
    thin = lambda request, purpose: PrivateGenerator(derived(request.key, purpose))  # noqa: E731
    with patch.object(ServerRequest, "generator", thin):
        yield


@contextmanager
def accounts_of_pixels() -> Iterator[None]:
    """An account is of the images as they were decoded."""
    made = Accounts.__init__

    def by_pixels(self: Accounts, home: Any, raw: Tensor) -> None:
        made(self, home / f"of-{by_pixels.side}", raw)  # type: ignore[attr-defined]

    def accounts(session: Session) -> Accounts:
        by_pixels.side = session.data.task.shape[1]  # type: ignore[attr-defined]
        return Accounts(session.store.home, session.data.examples.raw)  # type: ignore[arg-type]

    with patch.object(Accounts, "__init__", by_pixels), patch.object(Session, "accounts", property(accounts)):
        yield


@contextmanager
def talkative_audits() -> Iterator[None]:
    """Numbers for everybody, and no ration."""
    with patch.object(Accounts, "claim", lambda *_: True), patch("prunella.client.audit.DIGITS", 6):
        yield
