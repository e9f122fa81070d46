"""Signed and checked: whatever is changed, replaced, signed anew or taken away is refused."""

import json
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from prunella.core.errors import ConfigError
from prunella.server.attest import signing
from prunella.server.attest.signing import NotVerified, new_key, private_key, public_key, verify
from prunella.server.attest.write import attest
from prunella.server.checkpoint import Checkpoint, save, save_ledgers
from tests.server.report.stored import full_run

NEWEST = "round-00000004.safetensors"
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, its attestation in ``out`` and the key beside them."""
    home = tmp_path_factory.mktemp("attested")
    full_run(home / "run", client_noise=0.03)
    for kept in ("checkpoint", "best"):
        (home / "run" / kept).mkdir(exist_ok=True)
    saved = Checkpoint(
        4, {"w": torch.ones(2)}, {"w": torch.ones(2, dtype=torch.bool)}, {}, ledgers={"0": {"epsilon": 2.0}}
    )
    save(home / "run" / "checkpoint", saved)
    save_ledgers(home / "run" / "checkpoint", saved.ledgers)
    shutil.copy(home / "run" / "checkpoint" / NEWEST, home / "run" / "best" / "model.safetensors")
    attest(home / "run", home / "out", new_key(home / "attest.key"), "")
    return home


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


def check(home: Path, name: str = "out", run: bool = True) -> list[str]:
    return verify(home / name, public_key(home / "attest.pub"), home / "run" if run else None)


def test_what_was_signed_is_verified_by_any_of_its_files(copy: Path) -> None:
    for name in ("out", "out/attestation.json", "out/attestation.html", "out/attack_results.json"):
        said = check(copy, name)
        assert len(said) == 3 and "SHA256:" in said[0]
    moved = copy / "elsewhere"
    shutil.copytree(copy / "out", moved)
    assert verify(moved, public_key(copy / "attest.pub"))


def edit(change: Change) -> Callable[[Path], None]:
    def tamper(home: Path) -> None:
        path = home / "out" / "attestation.json"
        found = json.loads(path.read_text())
        change(found)
        path.write_text(json.dumps(found))

    return tamper


def signed_anew(home: Path) -> None:
    """The text changed, and signed with a key of the forger's, which is named in the file."""
    path = home / "out" / "attestation.json"
    found = json.loads(path.read_text())
    found["statement"]["headline"] = "Nothing was rebuilt."
    key = new_key(home / "forger.key")
    path.write_text(json.dumps(signing.signed(found["statement"], found["documents"], key)))


def text_replaced(home: Path) -> None:
    path = home / "out" / "attestation.json"
    path.write_text(path.read_text().replace("Leak found", "Not found!", 1))


def twice(home: Path) -> None:
    """Another statement before the signed one, which a lenient reader would show instead."""
    path = home / "out" / "attestation.json"
    path.write_text('{"statement": {"headline": "fine"},' + path.read_text().lstrip()[1:])


CHEAPER = Checkpoint(
    4, {"w": torch.zeros(2)}, {"w": torch.ones(2, dtype=torch.bool)}, {}, ledgers={"0": {"epsilon": 0.1}}
)
TAMPERED: dict[str, Callable[[Path], object]] = {
    "a word of the statement": text_replaced,
    "a number of the statement": edit(lambda f: f["statement"].update(epsilon={"most": 0.1, "delta": 1e-5})),
    "a section left out": edit(lambda f: f["statement"]["sections"].pop(6)),
    "a row of the attacks": edit(lambda f: f["statement"]["sections"][4]["tables"][0]["rows"].pop()),
    "another run's name": edit(lambda f: f["statement"].update(run="r-8")),
    "a digest of a document": edit(lambda f: f["documents"].update({"attestation.html": "0" * 64})),
    "a document no longer listed": edit(lambda f: f["documents"].pop("attestation.html")),
    "a signature cut short": edit(lambda f: f["signature"].update(value=f["signature"]["value"][:-8])),
    "no signature": edit(lambda f: f.pop("signature")),
    "another key named": edit(lambda f: f["signature"].update(public_key="A" * 43 + "=")),
    "a fingerprint of another": edit(lambda f: f["signature"].update(fingerprint="SHA256:x")),
    "signed anew by a forger": signed_anew,
    "a name that stands twice": twice,
    "a part added": edit(lambda f: f.update(approved=True)),
    "a part added to the signature": edit(lambda f: f["signature"].update(signed_for="the data protection officer")),
    "another algorithm named": edit(lambda f: f["signature"].update(algorithm="approved")),
    "a document of nearly the name": lambda home: (home / "out" / "Attestation.pdf").write_text("all is well"),
    "the page": lambda home: (home / "out" / "attestation.html").write_text("<p>all is well</p>"),
    "the audits for other tools": lambda home: (home / "out" / "attack_results.json").write_text("[]"),
    "a document gone": lambda home: (home / "out" / "attestation.html").unlink(),
    "the statement gone": lambda home: (home / "out" / "attestation.json").unlink(),
    "an empty file": lambda home: (home / "out" / "attestation.json").write_text(""),
    "an audit of the run taken out": lambda home: (home / "run" / "audits.jsonl").write_text(""),
    "a number of the run": lambda home: (home / "run" / "metrics.jsonl").write_text("{}\n"),
    "the model of the run": lambda home: save(home / "run" / "checkpoint", CHEAPER),
    "what every site has spent": lambda home: save_ledgers(home / "run" / "checkpoint", CHEAPER.ledgers),
    "a newer model of the run": lambda home: save(home / "run" / "checkpoint", replace(CHEAPER, round=5)),
    "the best model of the run": lambda home: (home / "run" / "best" / "model.safetensors").write_bytes(b"other"),
    "a document put beside it": lambda home: (home / "out" / "attestation.pdf").write_bytes(b"%PDF"),
    "audits of the run gone": lambda home: (home / "run" / "audits.jsonl").unlink(),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_whatever_was_changed_is_refused(copy: Path, how: str) -> None:
    TAMPERED[how](copy)
    with pytest.raises(NotVerified):
        check(copy)


def test_a_document_that_was_not_signed_is_not_verified_by_its_neighbours(copy: Path) -> None:
    (copy / "out" / "summary.pdf").write_bytes(b"%PDF")
    with pytest.raises(NotVerified, match="none of the documents"):
        check(copy, "out/summary.pdf")


def test_another_federation_s_key_does_not_verify(copy: Path) -> None:
    new_key(copy / "other.key")
    with pytest.raises(NotVerified, match="signed by another"):
        verify(copy / "out", public_key(copy / "other.pub"))


def test_keys_are_private_never_overwritten_and_refused_where_others_read_them(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "attest.key"
    new_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with pytest.raises(ConfigError, match="exists"):
        new_key(path)
    (path.parent / "given.pub").write_text("given out")
    with pytest.raises(ConfigError, match="given.pub exists"):
        new_key(path.parent / "given.key")
    assert not (path.parent / "given.key").exists(), "half a pair"
    assert private_key(path).public_key() == public_key(path.with_suffix(".pub"))
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        private_key(path)
    (tmp_path / "x.pub").write_text("not a key")
    for wrong, words in (("x.pub", "no Ed25519 public key"), ("missing.pub", "there is no file")):
        with pytest.raises(ConfigError, match=words):
            public_key(tmp_path / wrong)
