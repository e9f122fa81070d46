"""The ``prunella`` command. Each subcommand turns its options into one call and an exit code.

Exit codes: 0 success, 1 the federation (or a check) failed, 2 wrong usage or setting, 130 Ctrl-C. Nothing heavier than
typer and rich is imported before a command runs.
"""

from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import typer

from prunella.deploy.cli import attestation, exporting, machines
from prunella.deploy.cli.machines import AttackSettings, Runs, Settings, Stock
from prunella.deploy.cli.words import Commands
from prunella.deploy.console.terminal import EXIT, FAILED, INTERRUPTED, Consent, console, errors, explained, say
from prunella.library import DEFAULT_ATTACK

HELP = """Pruned, defended and audited federated learning on Flower.

Start here:

    prunella doctor           is this machine ready? what to fix
    prunella run              4 clients, 10 rounds, a report
    prunella run -c strategy=fedavg -c defenses=none
    prunella report latest    write a run's report again
    prunella attest latest    a signed document of it, to file
    prunella advise           which defense for your model and data?
    prunella export latest    its model, smaller if whole filters are pruned

On several machines: `prunella keys`, then `prunella superlink`, `prunella supernode` and `prunella submit`.

Settings and defaults: [tool.flwr.app.config] in the app's pyproject.toml.
"""
app = typer.Typer(
    cls=Commands,
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=False,
    pretty_exceptions_enable=False,  # they print local variables: keys, and whatever else a command holds
)
app.add_typer(attestation.app)
app.add_typer(exporting.app)
app.add_typer(machines.app)
Supernodes = Annotated[int, typer.Option(min=1, max=10_000, help="Number of clients.")]
RunId = Annotated[str, typer.Option(help="Name of the new run; by default its start time and four letters.")]
AppDir = Annotated[Path | None, typer.Option("--app", help="Directory of another Flower app than Prunella's own.")]
Audit = Annotated[Consent, typer.Option(help="What clients consent to. Pictures are for demonstrations.")]
Seed = Annotated[int | None, typer.Option(help="Repeatable random draws of clients, for experiments: no ε is printed.")]
Resume = Annotated[str, typer.Option(metavar="RUN", help="Go on with a run: an id, a path or 'latest'.")]
Keep = Annotated[bool, typer.Option("--keep", help="Keep Flower's own directories after a successful run.")]


def version(value: bool) -> None:
    if value:
        try:
            console.print(f"prunella {metadata.version('prunella')}", highlight=False)
        except metadata.PackageNotFoundError:
            console.print("prunella (run from its source, not installed)", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    show: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """The options before a command; the help text is ``HELP``."""


@app.command()
def run(
    context: typer.Context,
    settings: Settings = None,
    supernodes: Supernodes = 4,
    resume: Resume = "",
    run_id: RunId = "",
    runs: Runs = Path("runs"),
    audit: Audit = "pictures",
    client_seed: Seed = None,
    stock: Stock = False,
    keep: Keep = False,
    app_dir: AppDir = None,
) -> None:
    """Run a federation on this machine: a SuperLink and one SuperNode per client, on loopback.

    prunella run -c rounds=20 -c rate=0.5 --supernodes 8

    prunella run -c dataset=imagefolder:/data/photos -c model=resnet18

    prunella run --resume latest

    prunella run --app ../my-flower-app --supernodes 4

    With --app it runs another Flower app, -c then being that app's own run-config. It ends with the time it took, where
    the app's recorder put its traces, and the command that audits them.
    """
    from prunella.deploy.cli.federation import of_new_runs, run_local

    options = {"supernodes": supernodes, "run_id": run_id, "audit": audit, "client_seed": client_seed, "stock": stock}
    with explained():
        of_new_runs(context, resume, "app_dir", *options)
        raise typer.Exit(EXIT[run_local(app_dir, runs, settings or [], resume, keep, options)])


@app.command()
def simulate(
    context: typer.Context,
    settings: Settings = None,
    supernodes: Supernodes = 10,
    resume: Resume = "",
    run_id: RunId = "",
    runs: Runs = Path("runs"),
    audit: Audit = "pictures",
    cpus: Annotated[int, typer.Option(min=1, help="Processors of a virtual client.")] = 1,
    gpus: Annotated[float, typer.Option(min=0.0, help="GPUs of a virtual client; 0.25 lets four share one.")] = 0.0,
    keep: Keep = False,
    app_dir: AppDir = None,
) -> None:
    """Run the same federation on Flower's simulation engine (Ray): hundreds of virtual clients on one machine.

    prunella simulate --supernodes 100 -c rounds=50 -c fraction=0.1
    """
    from prunella.deploy.cli.federation import of_new_runs, run_local

    options = {
        "supernodes": supernodes,
        "run_id": run_id,
        "audit": audit,
        "simulate": True,
        "cpus_per_client": cpus,
        "gpus_per_client": gpus,
    }
    with explained():
        of_new_runs(context, resume, "app_dir", *options)
        raise typer.Exit(EXIT[run_local(app_dir, runs, settings or [], resume, keep, options)])


@app.command()
def report(
    run: Annotated[str, typer.Argument(help="Id or path of a run; 'latest' works.")] = "latest",
    runs: Runs = Path("runs"),
) -> None:
    """Write the report of a run again and show its table."""
    from prunella.deploy.cli.federation import finish
    from prunella.deploy.runs import RunError, find

    with explained():
        found = find(runs, run)
        if not found.status():
            raise RunError(
                f"{found.path} has no run.json, of which a report is made: it ended too early, or is of another app"
            )
        finish(found)


@app.command()
def compare(
    run: Annotated[list[str], typer.Argument(metavar="RUN RUN…", help="Ids or paths of two or more runs.")],
    seeds: Annotated[bool, typer.Option("--seeds", help="One column for runs that differ only in their seed.")] = False,
    runs: Runs = Path("runs"),
    json: Annotated[bool, typer.Option("--json", help="A JSON list instead: one record for each run.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="The same records as CSV.")] = False,
) -> None:
    """Show runs side by side: the settings that differ, and the results. --seeds: mean ± standard deviation.

    prunella compare 20260101-120000-abcd latest

    prunella compare --seeds runs/none-* runs/dgp-*
    """
    from prunella.deploy.errors import UsageError
    from prunella.deploy.runs import find

    with explained():
        if len(both := ["--seeds"] * seeds + ["--json"] * json + ["--csv"] * csv) > 1:
            raise UsageError(f"{' and '.join(both)} are answers in different forms: choose one of them")
        found = [find(runs, name) for name in run]
        if len({each.path for each in found}) < 2:
            raise UsageError("compare needs two different runs: `prunella runs` lists them")
        if json or csv:
            from prunella.deploy.tools.results import as_csv, as_json, records

            typer.echo(as_json(records(found)) if json else as_csv(records(found)).rstrip())
            return
        from prunella.deploy.tools.compare import by_seed, comparison

        console.print(comparison(by_seed(found) if seeds else [[run] for run in found]))


@app.command("runs")
def list_runs(
    runs: Runs = Path("runs"),
    json: Annotated[bool, typer.Option("--json", help="A JSON list: settings, figures and verdict of each.")] = False,
) -> None:
    """List the runs, oldest first."""
    from prunella.deploy.runs import every, state

    with explained():
        if json:
            from prunella.deploy.tools.results import as_json, records

            typer.echo(as_json(records(every(runs))))
            return
        for run in (found := every(runs)):
            console.print(f"{run.id}  {state(run)}", highlight=False)
        if not found:
            say(f"no runs in {runs}: start one with `prunella run`, or name another directory with --runs")


@app.command()
def audit(
    trace: Annotated[Path, typer.Argument(help="A recorded view: a *.safetensors file, or its directory.")],
    attack: Annotated[str, typer.Option(help="Name of the attack; portfolio asks all that fit.")] = DEFAULT_ATTACK,
    control: Annotated[
        bool, typer.Option("--control", help="Attack public images, too, sent as this trace says but not defended.")
    ] = False,
    worst_case: Annotated[
        bool, typer.Option("--worst-case", help="Attack one public image in one step, not the trace.")
    ] = False,
    public: Annotated[
        str, typer.Option(help="Dataset of these images, as in -c dataset=; else the run's, or digits, resized.")
    ] = "",
    settings: AttackSettings = None,
    out: Annotated[Path, typer.Option(help="Directory for the pictures.")] = Path("."),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the attack.")] = 0,
    model: Annotated[str, typer.Option(help="package.module:function, where the trace names one: its code runs.")] = "",
    truth: Annotated[Path | None, typer.Option(help="Safetensors file of the images x and labels y, to score.")] = None,
    known: Annotated[Path | None, typer.Option(help="Safetensors file of what denoise or mia needs to know.")] = None,
    earlier: Annotated[
        list[Path] | None, typer.Option(help="The same client's earlier traces, oldest first; may be repeated.")
    ] = None,
    keep: Annotated[Path | None, typer.Option(help="Directory in which a long attack saves its progress.")] = None,
    device: Annotated[str, typer.Option(help="Where the attack runs: auto, cpu, cuda or cuda:1.")] = "auto",
) -> None:
    """Attack a recorded view again: what could this server have reconstructed?

    prunella audit runs/latest/traces/round-000005-control --attack ig -c ig.iterations=2000

    prunella audit traces/round-000001-node-7.safetensors --model my_app.model:build --truth batch.safetensors

    prunella audit TRACE --control --public cifar10

    prunella audit TRACE --attack mia --known members-and-outsiders.safetensors --truth asked.safetensors

    Ends with the verdict of a run's report. Without --truth only the controls are scored. Exit codes: 0 the audit came
    to its end, whatever it found; 2 wrong usage, or a trace that cannot be attacked; 130 stopped by Ctrl-C or
    SIGTERM, which leaves what was found so far (a second one: nothing).
    """
    with explained():
        from prunella.attacks import PROBES
        from prunella.deploy.console.progress import descents
        from prunella.deploy.tools.replay import Sources, audit_membership
        from prunella.deploy.tools.trace_audit import TraceAudit, must_rebuild, run_audit

        sources = Sources(trace, out, model, truth, known, tuple(earlier or ()), keep, device)
        if attack in PROBES:
            must_rebuild(attack, control or worst_case or bool(public))
            for line in audit_membership(sources, attack, settings or [], seed).lines():
                say(line)
            return
        asked = TraceAudit(sources, attack, tuple(settings or ()), seed, public)
        with descents(errors) as tell:
            ended = run_audit(asked, control, worst_case, tell, say)
        raise typer.Exit(0 if ended else INTERRUPTED)


@app.command()
def prior(
    kind: Annotated[Literal["ggl", "rog"], typer.Argument(help="The attack that needs it.")],
    dataset: Annotated[str, typer.Option(help="Public images, as in the setting dataset.")] = "digits",
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("prior.safetensors"),
    split: Annotated[Literal["test", "train"], typer.Option(help="train: of a dataset that no client holds.")] = "test",
    data: Annotated[Path | None, typer.Option(help="Directory with a local copy of the dataset.")] = None,
    like: Annotated[str, typer.Option(help="Resize the images to those of this dataset.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="The run's seed: its canaries are left out of the training.")] = 0,
) -> None:
    """Train on public images the network that the attack ggl or rog needs: minutes on one core.

    prunella prior ggl --dataset mnist --out ggl.safetensors

    prunella audit TRACE --attack ggl -c ggl.prior=ggl.safetensors
    """
    with explained():
        from prunella.deploy.tools.prior import prior

        for line in prior(kind, dataset, out, split=split, data=data, like=like, seed=seed).lines():
            console.print(line, markup=False, highlight=False, soft_wrap=True)


@app.command()
def advise(
    settings: Settings = None,
    supernodes: Annotated[int, typer.Option(min=1, help="Number of sites.")] = 4,
    budget: Annotated[str, typer.Option(help="Begin nothing after this time (90s, 30min, 2h).")] = "30min",
    may_lose: Annotated[float, typer.Option(min=0, max=100, help="Points of accuracy that may go.")] = 2.0,
    short: Annotated[int, typer.Option(min=0, help="Rounds of each federation; 0: as many as it takes to learn.")] = 0,
    out: Annotated[Path, typer.Option(help="Directory for the page, the picture and the numbers.")] = Path("advice"),
    cache: Annotated[
        Path, typer.Option(help="Directory of finished federations, which a second call takes up.")
    ] = Path("runs/advice"),
) -> None:
    """Which defense for your own model, data and sites? Short federations, attacked, compared and answered.

    prunella advise --budget 10min

    prunella advise -c dataset=imagefolder:/data/photos -c model=hospital.net:build -c rounds=100 --may-lose 5

    It tries chains of defenses at two pruning rates, attacks each as a run is attacked, tries more where that decides,
    and answers with one chain, what it costs, what it does not protect against, and the command that runs it. A second
    call goes on where the budget ended.
    """
    from prunella.deploy.tools.claims import ADVISE, given, measure

    chosen = [word for each in settings or [] for word in ("-c", each)]
    chosen += given(supernodes=supernodes, budget=budget, may_lose=may_lose, short=short, out=out, cache=cache)
    with explained():
        measure(ADVISE, chosen)


@app.command()
def reproduce(
    claim: Annotated[
        str, typer.Argument(help="Name of a claim, such as D3, or your own module:CLAIM; without one, all of --size.")
    ] = "",
    listed: Annotated[bool, typer.Option("--list", help="List all claims, what they say and what they need.")] = False,
    size: Annotated[
        Literal["small", "paper"] | None,
        typer.Option(help="small (the default): minutes a claim on two cores. Without a claim, all of this size."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for the page, the plot and the numbers.")] = Path("results"),
    cache: Annotated[Path, typer.Option(help="Directory of finished cells, from which a stopped run resumes.")] = Path(
        "runs/claims"
    ),
    data: Annotated[
        Path | None, typer.Option(help="Directory of local copies (DIR/mnist, …); else from the hub.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Cells side by side, on a thread each.")] = 1,
    budget: Annotated[str, typer.Option(help="Begin no cell after this time (30min, 2h); the same call goes on.")] = "",
    device: Annotated[str, typer.Option(help="Of attacks and federations: cpu, cuda or auto.")] = "cpu",
    submit: Annotated[str, typer.Option(help="Of board: module:NAME, a defense or an attack of your own.")] = "",
    stored: Annotated[
        Path | None, typer.Option(help="Directory of results whose cells count as measured; it goes on there.")
    ] = None,
    pages: Annotated[
        bool,
        typer.Option("--pages", help="Measure nothing: judge OUT, or the claim that is named, anew from its JSON."),
    ] = False,
    index: Annotated[bool, typer.Option("--index", help="Measure nothing: write OUT's README.md anew.")] = False,
) -> None:
    """Measure a table or figure of a paper again: measured beside published values, with a verdict.

    prunella reproduce --list

    prunella reproduce D3 --data /data

    prunella reproduce my_table:TABLE --data /data --out paper

    prunella reproduce board --budget 30min --jobs 2

    prunella reproduce board --stored docs/results

    prunella reproduce --size paper --budget 30min --device cuda

    Without a claim, all that have the size are measured, what tells most per second first. A run may be stopped at any
    time: finished cells are kept, what is complete is written, and the same command goes on.
    """
    from prunella.deploy.tools.claims import REPRODUCE, given, measure
    from prunella.deploy.tools.claims import listed as every_claim

    if listed:
        typer.echo(every_claim())
        return
    chosen = [*filter(None, [claim]), *["--pages"][:pages], *["--index"][:index]]
    chosen += given(size=size, out=out, cache=cache, jobs=jobs, device=device, data=data, budget=budget)
    chosen += given(submit=submit, stored=stored)
    with explained():
        measure(REPRODUCE, chosen)


@app.command()
def doctor(
    runs: Runs = Path("runs"),
    dataset: Annotated[str, typer.Option(help="Dataset to check, as in -c dataset=.")] = "",
    reach: Annotated[str, typer.Option(metavar="HOST:PORT", help="A SuperLink that must answer from here.")] = "",
    app_dir: AppDir = None,
) -> None:
    """Check this machine: versions, ports, data, GPU, clock, directories. Every problem is shown with its fix."""
    from prunella.deploy.tools import doctor

    with explained():
        checks = doctor.examine(app_dir, runs, dataset, reach)
        console.print(doctor.table(checks))
        raise typer.Exit(FAILED if doctor.must_fix(checks) else 0)
