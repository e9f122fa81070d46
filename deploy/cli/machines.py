"""The commands for several machines: ``keys``, ``superlink``, ``executor``, ``supernode``, ``register``, ``submit``.

Thin wrappers over Flower's own commands, which they print before they run them. docs/deployment.md walks through them.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from prunella.deploy.console.terminal import FAILED, INTERRUPTED, Audit, explained, say

app = typer.Typer()
KeysDir = Annotated[Path, typer.Option("--keys", help="Directory that `prunella keys` wrote.")]
Insecure = Annotated[bool, typer.Option("--insecure", help="No TLS and no keys; on loopback only.")]
Anyway = Annotated[bool, typer.Option("--insecure-anyway", help="--insecure, even between machines.")]
Stock = Annotated[bool, typer.Option("--stock", help="Flower's own processes, unpatched and slower.")]
Control = Annotated[str, typer.Option("--superlink", metavar="HOST:PORT", help="The SuperLink's Control API.")]
Settings = Annotated[
    list[str] | None, typer.Option("-c", "--set", metavar="KEY=VALUE", help="A setting of the run; may be repeated.")
]


@app.command()
def keys(
    out: Annotated[Path, typer.Option(help="Directory to write to.")] = Path("keys"),
    supernodes: Annotated[int, typer.Option(min=0, help="Key pairs to make, named node-0, node-1 …")] = 0,
    name: Annotated[list[str] | None, typer.Option(help="Name of a SuperNode; may be repeated.")] = None,
    host: Annotated[list[str] | None, typer.Option(help="Name or IP address SuperNodes use; may be repeated.")] = None,
) -> None:
    """Make the federation's authority, the SuperLink's certificate and one key pair a SuperNode. Never overwrites.

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
    option = "" if out == Path("keys") else f" --keys {out}"
    lines = ["", "next, on the SuperLink's machine:"]
    lines += [f"    prunella superlink{option}", f"    prunella register{option}"]
    if not hosts:
        lines += ["the certificate is for this machine alone; SuperNodes elsewhere need keys made with --host"]
    if len(hosts) > 1:
        lines += [f"HOST below: whichever of {', '.join(hosts)} the SuperNode reaches the SuperLink by"]
    address = "127.0.0.1" if not hosts else "HOST" if len(hosts) > 1 else hosts[0]
    for client, name in enumerate(names, clients - len(names)):
        lines += [
            f"on the machine of {name}, with {out}/ca.crt and {out}/supernodes/{name} copied to the same places:",
            f"    prunella supernode --superlink {address}:9092{option} --name {name} "
            f"--client-id {client} --clients {clients}",
        ]
    return lines


@app.command()
def superlink(
    keys: KeysDir = Path("keys"),
    fleet: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where SuperNodes connect (gRPC).")] = "",
    control: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where commands connect.")] = "127.0.0.1:8000",
    home: Annotated[Path, typer.Option(help="Directory for its database and logs.")] = Path("superlink"),
    in_memory: Annotated[bool, typer.Option("--in-memory", help="No database: a restart forgets all keys.")] = False,
    open_control: Annotated[bool, typer.Option("--open-control", help="Allow --control outside loopback.")] = False,
    no_executor: Annotated[bool, typer.Option("--no-executor", help="`prunella executor` does that part.")] = False,
    insecure: Insecure = False,
    insecure_anyway: Anyway = False,
    stock: Stock = False,
) -> None:
    """Run the SuperLink of a federation across machines, until Ctrl-C. TLS and registered keys, unless --insecure.

    prunella superlink --keys keys
    """
    with explained():
        from prunella.deploy.machines import commands as machines
        from prunella.deploy.machines.commands import Address, Link
        from prunella.deploy.machines.keys import Keys
        from prunella.deploy.machines.member import serve

        plain = insecure or insecure_anyway
        address = Address.parse(fleet or ("127.0.0.1:9092" if insecure and not insecure_anyway else "0.0.0.0:9092"))
        machines.must_be_safe(address, plain, insecure_anyway)
        machines.must_be_private(Address.parse(control), open_control)
        link = Link(
            home=home.absolute(),
            keys=None if plain else Keys(keys.absolute()),
            fleet=address,
            control=Address.parse(control),
            in_memory=in_memory,
            warm=not stock,
            executor=not no_executor,
        )
        machines.check_link(link)
        machines.prepare(link.home)
        machines.forget_numbers(link)
        serve(machines.link_processes(link), link.warm, say)


@app.command()
def executor(
    superlink: Control = "127.0.0.1:8000",
    keys: KeysDir = Path("keys"),
    home: Annotated[Path, typer.Option(help="Directory for its logs.")] = Path("executor"),
    insecure: Insecure = False,
    insecure_anyway: Anyway = False,
    stock: Stock = False,
) -> None:
    """Run the ServerApps of a SuperLink that was started with --no-executor, until Ctrl-C. Needs KEYS/ca.crt only.

    prunella executor --superlink 127.0.0.1:8000
    """
    with explained():
        from prunella.deploy.machines import commands as machines
        from prunella.deploy.machines.commands import Address
        from prunella.deploy.machines.keys import Keys, present
        from prunella.deploy.machines.member import serve

        plain = insecure or insecure_anyway
        address = Address.parse(superlink)
        machines.must_be_safe(address, plain, insecure_anyway)
        ca = None if plain else Keys(keys.absolute()).ca
        present(*([ca] if ca else []))
        machines.prepare(home.absolute())
        serve([machines.executor(home.absolute(), address, ca)], not stock, say)


@app.command()
def supernode(
    superlink: Annotated[str, typer.Option(metavar="HOST:PORT", help="The SuperLink's Fleet API.")],
    client_id: Annotated[int, typer.Option(min=0, help="Which client this is, counted from 0.")],
    clients: Annotated[int, typer.Option(min=1, help="How many there are; decides the partition of shared data.")],
    keys: KeysDir = Path("keys"),
    name: Annotated[str, typer.Option(help="Name of its key in keys/supernodes; node-ID by default.")] = "",
    data: Annotated[Path | None, typer.Option(help="This client's own data.")] = None,
    audit: Annotated[Audit, typer.Option(help="What an audit is told: a word, numbers, pictures.")] = Audit.deny,
    require: Annotated[
        str,
        typer.Option(
            envvar="PRUNELLA_REQUIRE",
            help="Take part only in runs with these defenses, this strong: 'dgp, dgp.bottom=0.75'. Runs own code only.",
        ),
    ] = "",
    epsilon_budget: Annotated[
        float,
        typer.Option(min=0, envvar="PRUNELLA_EPSILON_BUDGET", help="The most ε of all runs together; 0: no limit."),
    ] = 0.0,
    delta: Annotated[float, typer.Option(help="The δ at which that ε counts.")] = 1e-5,
    home: Annotated[Path | None, typer.Option(help="Directory for its memory and logs.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Its own loopback port; 0 finds a free one.")] = 0,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to wait for an unknown key.")] = 90.0,
    insecure: Insecure = False,
    insecure_anyway: Anyway = False,
    stock: Stock = False,
) -> None:
    """Run a client's SuperNode, until Ctrl-C. Restarts after outages; ends with the mend when it is refused.

    prunella supernode --superlink superlink.example.org:9092 --name hospital-a --client-id 0 --clients 2 --data /data
    """
    with explained():
        from prunella.deploy.machines import commands as machines
        from prunella.deploy.machines.keys import Keys
        from prunella.deploy.machines.member import serve
        from prunella.deploy.ports import free_ports
        from prunella.deploy.runtime import patches

        name, link, plain = name or f"node-{client_id}", machines.Address.parse(superlink), insecure or insecure_anyway
        machines.must_be_safe(link, plain, insecure_anyway)
        node = machines.Node(
            home=(home or Path(name)).absolute(),
            superlink=link,
            client=client_id,
            clients=clients,
            port=port or free_ports(1)[0],
            ca=None if plain else Keys(keys.absolute()).ca,
            key=None if plain else Keys(keys.absolute()).supernode(name),
            data=data.absolute() if data else None,
            audit=audit.value,
            warm=not stock,
            require=require,
            epsilon_budget=epsilon_budget,
            delta=delta,
        )
        machines.check_node(node)
        machines.check_greeting(node)
        machines.prepare(node.home, "state")
        processes = machines.node_processes(node, machines.write_node_config(node))
        serve(processes, node.warm, say, patience, patches.poll_for(clients))


@app.command()
def register(keys: KeysDir = Path("keys"), superlink: Control = "127.0.0.1:8000") -> None:
    """Let the SuperNodes in KEYS/supernodes into a running SuperLink. Those it knows already stay as they are."""
    with explained():
        from prunella.deploy.machines.commands import Address
        from prunella.deploy.machines.keys import Keys
        from prunella.deploy.machines.submit import Target
        from prunella.deploy.machines.submit import register as let_in

        with tempfile.TemporaryDirectory() as folder:
            new = let_in(Target(Address.parse(superlink), Keys(keys)), Path(folder))
        say(f"registered: {', '.join(new)}" if new else "registered already: all of them")


@app.command()
def submit(
    settings: Settings = None,
    superlink: Control = "127.0.0.1:8000",
    keys: KeysDir = Path("keys"),
    supernodes: Annotated[int, typer.Option(min=1, help="Clients the first round waits for.")] = 2,
    resume: Annotated[str, typer.Option(metavar="RUN", help="Go on with a run: id, path or 'latest'.")] = "",
    run_id: Annotated[str, typer.Option(help="Name of the new run.")] = "",
    runs: Annotated[Path, typer.Option(envvar="PRUNELLA_RUNS", help="Directory that holds the runs.")] = Path("runs"),
    run_dir: Annotated[str, typer.Option(help="Where the SuperLink's machine keeps the run, if not here.")] = "",
    shared_runs: Annotated[bool, typer.Option("--shared-runs", help="RUNS is the same directory over there.")] = False,
    insecure: Insecure = False,
    app_dir: Annotated[Path | None, typer.Option("--app", help="Directory of another Flower app.")] = None,
) -> None:
    """Register the keys in KEYS, submit the app to a running SuperLink, follow it, and exit as the federation did.

    prunella submit --supernodes 2 -c rounds=20
    """
    with explained():
        from prunella.deploy.cli.session import submission
        from prunella.deploy.machines.commands import Address
        from prunella.deploy.machines.keys import Keys
        from prunella.deploy.machines.submit import Target

        target = Target(Address.parse(superlink), None if insecure else Keys(keys), run_dir, shared_runs)
        options = {"supernodes": supernodes, "run_id": run_id}
        status = submission(app_dir, runs, settings or [], target, resume, options)
        raise typer.Exit({"completed": 0, "failed": FAILED, "stopped": INTERRUPTED}[status])


@app.command()
def stop(
    run: Annotated[str, typer.Argument(metavar="RUN", help="An id, a path or 'latest'.")] = "latest",
    superlink: Control = "127.0.0.1:8000",
    keys: KeysDir = Path("keys"),
    runs: Annotated[Path, typer.Option(envvar="PRUNELLA_RUNS", help="Directory that holds the runs.")] = Path("runs"),
    insecure: Insecure = False,
) -> None:
    """End a run that was submitted with `prunella submit`. `submit --resume` goes on with it."""
    with explained():
        from prunella.deploy.machines.commands import Address
        from prunella.deploy.machines.keys import Keys
        from prunella.deploy.machines.submit import Target
        from prunella.deploy.machines.submit import stop as end
        from prunella.deploy.runs import find

        found = find(runs, run)
        with tempfile.TemporaryDirectory() as folder:
            done = end(Target(Address.parse(superlink), None if insecure else Keys(keys)), found, Path(folder))
        say(f"run {found.id} {'is stopped' if done else 'had ended already'}")
