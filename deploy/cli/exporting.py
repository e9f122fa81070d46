"""The command that writes a run's model for use elsewhere: ``prunella export``."""

from pathlib import Path
from typing import Annotated

import typer

from prunella.deploy.cli.machines import Runs
from prunella.deploy.console.terminal import explained, say

app = typer.Typer()
Formats = Annotated[
    list[str] | None,
    typer.Option("--format", help="Also for ONNX Runtime (onnx) or ExecuTorch (pte); may be given twice."),
]


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="Id or path of a run; 'latest' works.")] = "latest",
    runs: Runs = Path("runs"),
    out: Annotated[Path | None, typer.Option(help="Directory for the model; by default export/ in the run.")] = None,
    best: Annotated[bool, typer.Option("--best", help="The round that clients scored highest, not the last.")] = False,
    formats: Formats = None,
    int8: Annotated[bool, typer.Option("--int8", help="Each format in 8 bits, too; ONNX where none is named.")] = False,
    bench: Annotated[bool, typer.Option("--bench", help="Size, time and memory of each file on this machine.")] = False,
    data: Annotated[Path | None, typer.Option(help="Directory of the test examples, where they lie elsewhere.")] = None,
) -> None:
    """Write a run's model for use elsewhere, without the filters and neurons that are pruned entirely.

    prunella run -c strategy=magnitude -c magnitude.granularity=filter -c rate=0.5

    prunella export latest --format onnx --int8 --bench

    Masks of single weights save bytes on the wire, and no time: only whole filters make a model smaller and faster.
    """
    with explained():
        from prunella.core.folders import unwritable
        from prunella.deploy.runs import find
        from prunella.deploy.tools.export import Wanted
        from prunella.deploy.tools.export import export as write
        from prunella.deploy.tools.forms import named
        from prunella.server.report.build import write_report

        found = find(runs, run)
        for line in write(found, Wanted(out, best, named(formats or []), int8, bench, data)).lines():
            say(line)
        if found.status() and (reason := unwritable(found.path)):
            say(f"report     as it was: {found.path} cannot be written ({reason})")
        elif found.status():
            say(f"report     {write_report(found.path)}")
