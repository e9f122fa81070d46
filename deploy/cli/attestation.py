"""The commands that make and check a document of a run: ``prunella attest`` and ``prunella verify``."""

from pathlib import Path
from typing import Annotated

import typer

from prunella.deploy.cli.machines import Runs
from prunella.deploy.console.terminal import FAILED, explained, say

app = typer.Typer()
KEY = Path("keys/attest.key")
PUBLIC = KEY.with_suffix(".pub")


@app.command()
def attest(
    run: Annotated[str, typer.Argument(help="Id or path of a run that has ended; 'latest' works.")] = "latest",
    key: Annotated[Path, typer.Option(help="The federation's signing key; made on first use, with KEY.pub.")] = KEY,
    out: Annotated[Path | None, typer.Option(help="Where to; by default RUN/attestation.")] = None,
    no_pdf: Annotated[bool, typer.Option("--no-pdf", help="Only HTML and JSON.")] = False,
    runs: Runs = Path("runs"),
) -> None:
    """Write what a run showed as a document to file and to sign: PDF, HTML and JSON, signed with KEY.

    prunella attest latest

    prunella verify runs/latest/attestation --key keys/attest.pub

    A PDF needs WeasyPrint (pip install "prunella[attest]") or Chromium.
    """
    from prunella.deploy.errors import UsageError, writable
    from prunella.deploy.machines.keys import private_directory
    from prunella.deploy.runs import find
    from prunella.server.attest.page import printer
    from prunella.server.attest.signing import fingerprint, new_key, private_key
    from prunella.server.attest.statement import Evidence
    from prunella.server.attest.write import attest as write

    with explained():
        folder = find(runs, run).path
        _ = Evidence(folder).run  # before a key is made: raises where there is nothing to attest
        if key.suffix == ".pub":
            raise UsageError(f"{key} is the public half: name the private key, {key.with_suffix('.key')}")
        if key.is_dir():
            raise UsageError(f"{key} is a directory: name a file in it with --key, such as {key / KEY.name}")
        to = out or folder / "attestation"
        with writable(to, "--out"):
            to.mkdir(parents=True, exist_ok=True)
        made = not key.exists()
        try:
            if not key.parent.exists():
                private_directory(key.parent)  # git ignores it
            signing = new_key(key) if made else private_key(key)
        except OSError as error:
            raise UsageError(f"cannot write {key} ({error.strerror}): name another with --key") from None
        if made:
            say(f"made {key} and {key.with_suffix('.pub')}: keep the first, give the second to whoever verifies")
        with_printer = "" if no_pdf else printer()
        for path in write(folder, to, signing, with_printer):
            say(str(path))
        if not with_printer and not no_pdf:
            say("no PDF: no WeasyPrint (pip install 'prunella[attest]') and no Chromium here; the HTML prints alike")
        say(f"signed by {fingerprint(signing.public_key())}")


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="attestation.json, a document beside it, or their directory.")],
    key: Annotated[Path, typer.Option(help="The federation's public key.")] = PUBLIC,
    run: Annotated[Path | None, typer.Option(help="The run's directory, to compare its files too.")] = None,
) -> None:
    """Check an attestation, without a network: exit code 0 if nothing was changed and KEY signed it, else 1.

    prunella verify runs/latest/attestation --key keys/attest.pub

    The public key has to come from the federation, not with the document: whoever changes a text can sign it anew.
    """
    from prunella.deploy.errors import UsageError
    from prunella.server.attest.signing import NotVerified, public_key
    from prunella.server.attest.signing import verify as check

    with explained():
        if not file.exists():
            raise UsageError(f"there is no {file}: name attestation.json, or the directory that it is in")
        if not key.exists():
            raise UsageError(f"there is no {key}: name the federation's public key with --key")
        if run is not None and not run.is_dir():
            raise UsageError(f"there is no {run}: name the run's directory with --run, or leave it out")
        try:
            for line in check(file, public_key(key), run):
                say(line)
        except NotVerified as error:
            say(f"NOT VERIFIED: {error}")
            raise typer.Exit(FAILED) from None
        say("verified")
