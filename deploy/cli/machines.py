"""The commands for several machines: ``keys``, ``superlink``, ``executor``, ``supernode``, ``wheelhouse``,
``register``, ``unregister``, ``submit``, ``stop``.

``superlink``, ``executor`` and ``supernode`` print Flower's own commands before they run them. docs/deployment.md walks
through all of them.
"""

import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from prunella.deploy.console.terminal import EXIT, Consent, explained, say
from prunella.deploy.errors import UsageError

app = typer.Typer()
Runs = Annotated[Path, typer.Option(envvar="PRUNELLA_RUNS", help="Directory that holds the runs.")]
KeysDir = Annotated[Path, typer.Option("--keys", help="Directory that `prunella keys` wrote.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS and no keys; on loopback only.")]
Anyway = Annotated[bool, typer.Option("--insecure-anyway", help="As --insecure, and between machines too.")]
Stock = Annotated[bool, typer.Option("--stock", help="Flower's own processes, unpatched and slower.")]
Control = Annotated[str, typer.Option("--superlink", metavar="HOST:PORT", help="The SuperLink's Control API.")]
Settings = Annotated[
    list[str] | None, typer.Option("-c", "--set", metavar="KEY=VALUE", help="A setting of the run; may be repeated.")
]
AttackSettings = Annotated[
    list[str] | None,
    typer.Option("-c", "--set", metavar="KEY=VALUE", help="A setting of the attack, as sgi.tv=0.2; may be repeated."),
]


@app.command()
def keys(
    out: Annotated[Path, typer.Option(help="Directory to write to.")] = Path("keys"),
    supernodes: Annotated[int, typer.Option(min=0, help="Key pairs to make, named node-0, node-1 …")] = 0,
    name: Annotated[list[str] | None, typer.Option(help="Name of a SuperNode; may be repeated.")] = None,
    host: Annotated[list[str] | None, typer.Option(help="Name or IP address SuperNodes use; may be repeated.")] = None,
) -> None:
    """Make the federation's authority, the SuperLink's certificate and a key pair per SuperNode. Never overwrites.

    prunella keys --host superlink.example.org --host 10.0.0.1 --name hospital-a --name hospital-b

    prunella keys --name hospital-c        (adds one to those in ./keys)
    """
    with explained():
        from prunella.deploy.machines.keys import Keys, certified, make

        names = [*(name or []), *(f"node-{index}" for index in range(supernodes))]
        for path in make(out, names, host or []):
            say(f"wrote {path}")
        for line in next_steps(out, names, certified(Keys(out).certificate), len(Keys(out).public())):
            say(line)


def next_steps(out: Path, names: Sequence[str], hosts: Sequence[str], clients: int) -> list[str]:
    """What to type after ``prunella keys``: the last ``names`` of ``clients`` SuperNodes are new.

    >>> print(*next_steps(Path("keys"), ["west"], ["10.0.0.1"], 3)[-2:], sep="\\n")
    on the machine of west, with keys/ca.crt and keys/supernodes/west copied to the same places:
        prunella supernode --superlink 10.0.0.1:9092 --name west --client-id 2 --clients 3
    """
    from prunella.deploy.ports import Address

    option = "" if out == Path("keys") else f" --keys {shlex.quote(str(out))}"
    lines = ["", "next, on the SuperLink's machine:"]
    lines += [f"    prunella superlink{option}", f"    prunella register{option}"]
    if not hosts:
        lines += ["the certificate is for this machine alone: for SuperNodes elsewhere, make keys with --host"]
    if len(hosts) > 1:
        lines += [f"HOST below: whichever of {', '.join(hosts)} the SuperNode reaches the SuperLink by"]
    address = Address("127.0.0.1" if not hosts else "HOST" if len(hosts) > 1 else hosts[0], 9092)
    for client, name in enumerate(names, clients - len(names)):
        lines += [
            f"on the machine of {name}, with {out}/ca.crt and {out}/supernodes/{name} copied to the same places:",
            f"    prunella supernode --superlink {address}{option} --name {name} "
            f"--client-id {client} --clients {clients}",
        ]
    return lines


@app.command()
def superlink(
    keys: KeysDir = Path("keys"),
    fleet: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where SuperNodes connect.")] = "",
    control: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where commands connect.")] = "127.0.0.1:8000",
    home: Annotated[Path, typer.Option(help="Directory for its database and logs.")] = Path("superlink"),
    in_memory: Annotated[bool, typer.Option("--in-memory", help="No database: a restart forgets all keys.")] = False,
    open_control: Annotated[bool, typer.Option("--open-control", help="Allow --control outside loopback.")] = False,
    no_executor: Annotated[
        bool, typer.Option("--no-executor", help="`prunella executor` runs the ServerApps.")
    ] = False,
    insecure: Insecure = False,
    insecure_anyway: Anyway = False,
    stock: Stock = False,
) -> None:
    """Run the SuperLink of a federation across machines, until Ctrl-C. TLS and registered keys, unless --insecure.

    prunella superlink --keys keys
    """
    with explained():
        from prunella.deploy.machines import commands as machines
        from prunella.deploy.machines.commands import SuperLink
        from prunella.deploy.machines.keys import Keys, ending
        from prunella.deploy.machines.supervisor import serve
        from prunella.deploy.ports import Address

        plain = insecure or insecure_anyway
        local = insecure and not insecure_anyway
        address = Address.parse(fleet or machines.fleet_address(control, local, stock))
        machines.must_be_safe(address, plain, insecure_anyway)
        machines.must_be_private(Address.parse(control), open_control)
        link = SuperLink(
            home=home.absolute(),
            keys=None if plain else Keys(keys.absolute()),
            fleet=address,
            control=Address.parse(control),
            in_memory=in_memory,
            stock=stock,
            executor=not no_executor,
        )
        machines.check_link(link)
        machines.make_home(link.home)
        with machines.held(link.home):
            machines.forget_numbers(link)
            serve(machines.link_processes(link), stock, say, reminders=lambda: ending(link.keys) if link.keys else [])


@app.command()
def executor(
    superlink: Control = "127.0.0.1:8000",
    keys: KeysDir = Path("keys"),
    home: Annotated[Path, typer.Option(help="Directory for its logs.")] = Path("executor"),
    insecure: Insecure = False,
    insecure_anyway: Anyway = False,
    stock: Stock = False,
) -> None:
    """Run the ServerApps of a SuperLink started with --no-executor, until Ctrl-C. Needs only KEYS/ca.crt.

    prunella executor --superlink 127.0.0.1:8000
    """
    with explained():
        from prunella.deploy.machines import commands as machines
        from prunella.deploy.machines.keys import Keys, present
        from prunella.deploy.machines.supervisor import serve
        from prunella.deploy.ports import Address, wait_open

        plain = insecure or insecure_anyway
        address = Address.parse(superlink)
        machines.must_be_safe(address, plain, insecure_anyway)
        ca = None if plain else Keys(keys.absolute()).ca
        present(*([ca] if ca else []))
        machines.make_home(home.absolute())
        if not wait_open(address.port, 2.0, every=0.2, host=address.host):
            say(f"no SuperLink answers at {address} yet: start it with `prunella superlink --no-executor`")
        with machines.held(home.absolute()):
            serve([machines.executor(home.absolute(), address, ca)], stock, say)


Require = Annotated[
    str,
    typer.Option(
        envvar="PRUNELLA_REQUIRE",
        help="Join only runs with at least these defenses: 'dgp, dgp.bottom=0.75'. Runs only installed code.",
    ),
]
Budget = Annotated[
    float,
    typer.Option(min=0, envvar="PRUNELLA_EPSILON_BUDGET", help="The most ε, over all runs together; 0: no limit."),
]
SumPeers = Annotated[Path | None, typer.Option(help="Keys of the sites that masked sums may be with.")]
SumLeast = Annotated[int, typer.Option(help="Fewest clients in a masked sum; 3 by default.")]
SumWith = Annotated[str, typer.Option(help="Clients without which it is in no masked sum: '0, 1, 2'.")]
Approved = Annotated[
    list[str] | None,
    typer.Option(metavar="FAB", help="Run this app only, behind these conditions; a file or SHA-256; repeatable."),
]


@app.command()
def supernode(
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="The SuperLink's Fleet API.")],
    client_id: Annotated[int, typer.Option(min=0, help="Number of this client, counted from 0.")],
    clients: Annotated[int, typer.Option(min=1, help="Number of all clients; decides the partition of shared data.")],
    keys: KeysDir = Path("keys"),
    name: Annotated[str, typer.Option(help="Name of its key in keys/supernodes; node-ID by default.")] = "",
    data: Annotated[Path | None, typer.Option(help="This client's own data.")] = None,
    audit: Annotated[Consent, typer.Option(help="What audits are given: a word, numbers, pictures.")] = "deny",
    require: Require = "",
    epsilon_budget: Budget = 0.0,
    delta: Annotated[float | None, typer.Option(help="The δ at which that ε counts: 1e-5 unless given.")] = None,
    approve: Approved = None,
    metrics: Annotated[str, typer.Option(help="What an approved app may tell beside num-examples: 'loss, f1'.")] = "",
    width: Annotated[float, typer.Option(min=0.01, max=1, help="Share of each layer's channels it trains.")] = 1.0,
    importance: Annotated[Path | None, typer.Option(help="Its map for channel-personalized.importance=site.")] = None,
    sum_peers: SumPeers = None,
    sum_least: SumLeast = 0,
    sum_with: SumWith = "",
    home: Annotated[Path | None, typer.Option(help="For its state and logs; by default named like --name.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Its own loopback port; 0: any free one.")] = 0,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to keep trying while the key is unknown.")] = 90.0,
    insecure: Insecure = False,
    insecure_anyway: Anyway = False,
    stock: Stock = False,
) -> None:
    """Run a client's SuperNode, until Ctrl-C. Restarts after outages; when refused, it ends and names the fix.

    prunella supernode --superlink superlink.example.org:9092 --name hospital-a --client-id 0 --clients 2 --data /data

    prunella supernode … --approve app.fab --require "dp-sgd, clip<=1, noise-multiplier>=1" --epsilon-budget 3"""
    with explained():
        from prunella.deploy.machines import commands as machines
        from prunella.deploy.machines.keys import Keys
        from prunella.deploy.machines.supervisor import serve
        from prunella.deploy.ports import Address, free_ports
        from prunella.deploy.runtime import approved, patches

        name, plain, own = name or f"node-{client_id}", insecure or insecure_anyway, Keys(keys.absolute())
        machines.must_be_safe(link := Address.parse(superlink), plain, insecure_anyway)
        here = (home or Path(name)).absolute(), link, client_id, clients, port or free_ports(1)[0]
        node = machines.SuperNode(
            *here,
            ca=None if plain else own.ca,
            key=None if plain else own.supernode(name),
            data=data.absolute() if data else None,
            audit=audit,
            stock=stock,
            require=require,
            epsilon_budget=epsilon_budget,
            delta=delta,
            approve=tuple(approved.read_approval(given) for given in approve or ()),
            metrics=metrics,
            width=width,
            sums=(sum_peers.absolute() if sum_peers else None, sum_least, sum_with),
            importance=importance.absolute() if importance else None,
        )
        with machines.prepared(node) as parts:
            serve(parts, stock, say, patience, patches.poll_for(clients))


@app.command()
def register(keys: KeysDir = Path("keys"), superlink: Control = "127.0.0.1:8000") -> None:
    """Register the SuperNodes in KEYS/supernodes at a SuperLink. Those it knows already, or keeps out, stay so."""
    with explained():
        from prunella.deploy.machines.keys import Keys
        from prunella.deploy.machines.submit import Destination
        from prunella.deploy.machines.submit import register as register_keys
        from prunella.deploy.ports import Address

        with tempfile.TemporaryDirectory() as folder:
            new, removed = register_keys(Destination(Address.parse(superlink), Keys(keys)), Path(folder))
        for name in removed:
            say(f"{name} was removed and stays out: delete {keys}/supernodes/{name}.pub, or make it a new key")
        if new or not removed:
            say(f"registered: {', '.join(new)}" if new else "all of them are registered already")


@app.command()
def unregister(
    name: Annotated[str, typer.Argument(help="Name of a SuperNode's key, or its node id.")],
    keys: KeysDir = Path("keys"),
    superlink: Control = "127.0.0.1:8000",
    free_number: Annotated[bool, typer.Option("--free-number", help="Another key may have its client number.")] = False,
    home: Annotated[Path, typer.Option(help="The --home of what runs the ServerApps.")] = Path("superlink"),
    insecure: Insecure = False,
) -> None:
    """Remove a SuperNode: its key is let in no more, from now on and for good. The run goes on without it.

    prunella unregister north                  (its site leaves, or somebody else has the key)

    prunella unregister north --free-number    (and a new key shall be the same client)
    """
    with explained():
        from prunella.deploy.machines.commands import NUMBERS
        from prunella.deploy.machines.keys import Keys
        from prunella.deploy.machines.submit import Destination
        from prunella.deploy.machines.submit import unregister as remove
        from prunella.deploy.ports import Address
        from prunella.strategies.round.numbering import Numbering

        file = home / "flower" / NUMBERS
        if free_number and not file.exists():
            raise UsageError(f"{file} is missing: name the directory of what runs the ServerApps with --home")
        with tempfile.TemporaryDirectory() as folder:
            target = Destination(Address.parse(superlink), None if insecure else Keys(keys))
            node, already = remove(target, name, Path(folder))
        say(f"{name} is removed{' already' if already else ''}: the SuperLink lets this key in no more")
        if free_number and (number := Numbering(file).free(node)) is not None:
            say(f"client number {number} is free: whichever key states it first has it")


@app.command()
def wheelhouse(
    also: Annotated[list[str] | None, typer.Argument(help="Requirements besides, such as torch==2.13.0+cpu.")] = None,
    out: Annotated[Path, typer.Option(help="Folder to fill; it must be empty.")] = Path("wheelhouse"),
    extra: Annotated[list[str] | None, typer.Option(help="server, vision …; none for a client.")] = None,
    machine: Annotated[str, typer.Option(help="x86_64, aarch64, macos or windows, if not this one's kind.")] = "",
    python: Annotated[str, typer.Option(help="The site's Python, such as 3.12, if not this one.")] = "",
    index: Annotated[list[str] | None, typer.Option(help="A package index besides pip's own.")] = None,
    only: Annotated[Path | None, typer.Option("--list", help="Pack nothing: write what it would be here.")] = None,
) -> None:
    """Pack all that a site without a network installs: wheels, their digests and a script.

    prunella wheelhouse --index https://download.pytorch.org/whl/cpu

    prunella wheelhouse --machine aarch64 --out for-the-jetson
    """
    with explained():
        from prunella.deploy.errors import writable
        from prunella.deploy.tools.wheelhouse import listed, pack

        if only:
            said = shlex.join(["prunella", *sys.argv[1:]])
            lines = [f"# {said}", *listed(extra or [], also or [], machine, python, index or [])]
            with writable(only, "--list"):
                only.write_text("\n".join(lines) + "\n")
            return
        for line in pack(out, extra or [], also or [], machine, python, index or [], say).lines():
            say(line)


@app.command()
def submit(
    settings: Settings = None,
    superlink: Control = "127.0.0.1:8000",
    keys: KeysDir = Path("keys"),
    supernodes: Annotated[int, typer.Option(min=1, help="Clients the first round waits for.")] = 2,
    resume: Annotated[str, typer.Option(metavar="RUN", help="Go on with a run: id, path or 'latest'.")] = "",
    run_id: Annotated[str, typer.Option(help="Name of the new run.")] = "",
    runs: Runs = Path("runs"),
    run_dir: Annotated[str, typer.Option(help="The run's directory on the SuperLink's machine, if not here.")] = "",
    shared_runs: Annotated[bool, typer.Option("--shared-runs", help="RUNS is the same directory there.")] = False,
    insecure: Insecure = False,
    app_dir: Annotated[Path | None, typer.Option("--app", help="Directory of another Flower app.")] = None,
) -> None:
    """Register the keys in KEYS, submit the app to a running SuperLink, follow it, and exit as the federation did.

    prunella submit --supernodes 2 -c rounds=20
    """
    with explained():
        from prunella.deploy.cli.federation import submit_run
        from prunella.deploy.machines.keys import Keys
        from prunella.deploy.machines.submit import Destination
        from prunella.deploy.ports import Address

        target = Destination(Address.parse(superlink), None if insecure else Keys(keys), run_dir, shared_runs)
        options = {"supernodes": supernodes, "run_id": run_id}
        status = submit_run(app_dir, runs, settings or [], target, resume, options)
        raise typer.Exit(EXIT[status])


@app.command()
def stop(
    run: Annotated[str, typer.Argument(metavar="RUN", help="An id, a path or 'latest'.")] = "latest",
    superlink: Control = "127.0.0.1:8000",
    keys: KeysDir = Path("keys"),
    runs: Runs = Path("runs"),
    insecure: Insecure = False,
) -> None:
    """End a run that was submitted with `prunella submit`. `prunella submit --resume` continues it."""
    with explained():
        from prunella.deploy.machines.keys import Keys
        from prunella.deploy.machines.submit import Destination
        from prunella.deploy.machines.submit import stop as stop_run
        from prunella.deploy.ports import Address
        from prunella.deploy.runs import find

        found = find(runs, run)
        with tempfile.TemporaryDirectory() as folder:
            done = stop_run(
                Destination(Address.parse(superlink), None if insecure else Keys(keys)), found, Path(folder)
            )
        say(f"run {found.id} {'is stopped' if done else 'had ended already'}")
