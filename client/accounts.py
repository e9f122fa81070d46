"""What the client has let through of its examples, over all runs: one file, which also holds its key.

A server chooses what a run is called, may call the same data by another dataset's name, cut it another way or have it
decoded at another size. So an account belongs to the raw bytes (a file's, or a table's cell) that examples were decoded
from, as 64-bit digests (``tasks.examples.raw_digests``). A *set* is what one partition gave the client. What is known
of a set is what was ever written for any set that shares an example with it: no example's losses are counted too low,
and those of an example that was not in every set are counted too high. Answers to audits and evaluations are rationed
by the same rule. Approved apps of others, which name no examples, have a file of their own (``APPS``): all that one of
the two holds counts in the other, too. A server that cuts one dataset in ever other ways makes ever more sets: beyond
``SETS`` they become one. An account that is full (``FULL``) can be read, and takes no further charge: ``DefenseError``.

The key, 256 bits of the operating system's randomness, is what noise is drawn from (``client.session.ServerRequest``).
It lies in the same file as the charges, so that one is never lost without the other: a charge without its noise would
be answered twice. An account that was begun and is missing, or cannot be read, stops the client: ``DefenseError``.

    account.safetensors     tensors: the digests of each set; metadata: the key, charges and answers by set
    account.begun           empty: there is an account, or there was
    flower/                 the same of apps other than Prunella's own (``flower.site``), which name no examples
"""

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prunella.core.errors import DefenseError
from prunella.core.files import read_tree, write_tree
from prunella.core.randomness import KEY_BYTES
from prunella.core.trees import Tree
from prunella.privacy.accounting import Charge
from prunella.privacy.ledger.ledger import Ledger, add, from_json, to_json

FILE, BEGUN = "account.safetensors", "account.begun"
APPS = "flower"  # inside the client's directory
SETS = 64
JOINED = "joined"
FULL = 50_000_000  # characters beside the sets, some 140 000 answers: a header of over 100 MB cannot be read again


@dataclass
class _Book:
    """The file: the key, and by the name of a set its digests, charges, and how often which question was answered.
    ``told`` has a digest of the answer by that of the question."""

    key: bytes
    sets: Tree = field(default_factory=dict)
    charges: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    answers: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)


def begin(home: Path, key: bytes) -> None:
    """An empty account with a given key: for clients of a benchmark, which protect no private data."""
    write_tree(home / FILE, {}, _metadata(_Book(key)))


class Accounts:
    """The accounts of one client in ``home``, seen from the examples with the digests ``raw`` [N].

    Who writes holds the lock of the client's directory (``client.state.ClientStore.alone``).
    """

    def __init__(self, home: Path, raw: Tensor, beside: Path | None = None) -> None:
        self.path, self._beside = home / FILE, beside
        self.raw: Tensor = torch.unique(raw)
        self.name = hashlib.sha256(self.raw.numpy().tobytes()).hexdigest()[:16]

    @property
    def _called(self) -> str:
        return f"{APPS}/{FILE}" if self.path.parent.name == APPS else FILE

    def key(self) -> bytes:
        """The client's secret, made when first asked for."""
        with self._changed() as book:
            return book.key

    def ledger(self) -> Ledger:
        """Every charge of an answer about any of these examples, and all of those in the directory ``beside``."""
        book = self._read()
        mine = [charge for name in self._overlapping(book) for charge in self._charges(book, name)]
        if self._beside is not None:
            other = Accounts(self._beside, self.raw)._read()
            mine += [charge for name in other.charges for charge in self._charges(other, name)]
        return add(Ledger(), *mine)

    def charge(self, new: Charge) -> None:
        """Write a charge down; on the disk when this returns."""
        with self._changed() as book:
            before = Ledger(tuple(self._charges(book, self.name)))
            book.charges[self.name] = to_json(add(before, new).charges)

    def confirm(self, question: str, answer: str) -> None:
        """Note the digest of an answer. Raises ``DefenseError`` if the same question had another answer before: the
        two would differ under one noise, as after a move to a machine that rounds differently."""
        with self._changed() as book:
            if book.told.setdefault(question, answer) != answer:
                raise DefenseError(
                    "this question was answered before, and the answer would be another now: run this client on the "
                    "machine and release that answered it"
                )

    def claim(self, kind: str, question: str, limit: int, total: int) -> bool:
        """True, and counted, while ``question`` was answered fewer than ``limit`` times and all questions of its kind
        about any of these examples fewer than ``total`` times."""
        with self._changed() as book:
            counts = [book.answers.get(name, {}).get(kind, {}) for name in self._overlapping(book)]
            asked = sum(number for count in counts for number in count.values())
            if sum(count.get(question, 0) for count in counts) >= limit or asked >= total:
                return False
            mine = book.answers.setdefault(self.name, {}).setdefault(kind, {})
            mine[question] = mine.get(question, 0) + 1
            return True

    def _overlapping(self, book: _Book) -> list[str]:
        own = self.raw.numpy()
        return [n for n, t in book.sets.items() if len(np.intersect1d(t.numpy(), own, assume_unique=True))]

    def _charges(self, book: _Book, name: str) -> tuple[Charge, ...]:
        return from_json(book.charges.get(name, []))

    def _read(self) -> _Book:
        home = self.path.parent
        if not (self.path.exists() or (home / BEGUN).exists() or any(home.glob("runs/*/*"))):
            return _Book(secrets.token_bytes(KEY_BYTES), {self.name: self.raw})
        try:
            sets, metadata = read_tree(self.path)
            key = bytes.fromhex(metadata["key"])
            if len(key) != KEY_BYTES:
                raise ValueError("key")
            charges, answers, told = (json.loads(metadata[name]) for name in ("charges", "answers", "told"))
            book = _Book(key, sets, charges, answers, told)
            if not book.charges.keys() | book.answers.keys() <= sets.keys():
                raise ValueError("sets")
        except Exception as error:
            raise DefenseError(
                f"this client's account cannot be read ({type(error).__name__}): restore {self._called}, or remove "
                "this client's state directory to begin again without it"
            ) from error
        return book

    @contextmanager
    def _changed(self) -> Iterator[_Book]:
        """The book, written back where it was changed."""
        book = self._read()
        before = _metadata(book) if self.path.exists() else {}
        if self.name not in book.sets and len(book.sets) >= SETS:
            book = _joined(book)
        book.sets.setdefault(self.name, self.raw)
        yield book
        after = _metadata(book)
        if after != before:
            if sum(len(text) for text in after.values()) > FULL:
                raise DefenseError(
                    f"this client's account is full ({self._called}): it takes part no more, and its ε stays as it is; "
                    "another state directory would begin at an ε of zero, and is for other examples only"
                )
            write_tree(self.path, book.sets, after)
            self.path.with_name(BEGUN).touch()


def _joined(book: _Book) -> _Book:
    """The book with all sets as one: every charge and answer then counts for every example of any."""
    charges = add(Ledger(), *(charge for rows in book.charges.values() for charge in from_json(rows)))
    answers: dict[str, Counter[str]] = {}
    for kinds in book.answers.values():
        for kind, counts in kinds.items():
            answers.setdefault(kind, Counter()).update(counts)
    raw = torch.unique(torch.cat(list(book.sets.values())))
    plain = {kind: dict(counts) for kind, counts in answers.items()}
    return _Book(book.key, {JOINED: raw}, {JOINED: to_json(charges.charges)}, {JOINED: plain}, book.told)


def _metadata(book: _Book) -> dict[str, str]:
    plain = {"charges": book.charges, "answers": book.answers, "told": book.told}
    return {"key": book.key.hex(), **{name: json.dumps(value) for name, value in plain.items()}}
