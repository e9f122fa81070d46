"""One message's worth of a client: its settings, its data, its model, its defenses, its memory.

Everything comes from the node's own configuration and the run's settings; nothing from the server decides where files
lie or whether the client consents.

Node configuration: ``partition-id`` (or ``client-id``), ``num-partitions``, ``state-dir``, ``data``, ``audit``,
``require``, ``epsilon-budget`` and ``delta`` (``client.policy``) and, for reproducible experiments only,
``client-seed``. The virtual clients of a simulation have no configuration of their own: for them
``PRUNELLA_STATE_DIR`` and ``PRUNELLA_AUDIT`` in the environment stand in.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from flwr.app import Context

from client.accounts import Accounts
from client.policy import Policy, check_run, read_policy, within
from client.state import ClientStore
from core.config import Raw, Run, parse_run, parse_section
from core.device import pick_device
from core.errors import ConfigError
from core.randomness import stream
from core.trees import Tree
from privacy.accounting import Privacy
from privacy.chain import Chain, build_chain
from privacy.ledger import Ledger
from strategies import validates
from strategies.local import Procedure
from strategies.roster import CONSENTS, Consent
from tasks.data import Examples, Partition, batches, load_client, make_task
from tasks.examples import poisson_batches
from tasks.task import Task, initial
from tasks.training import Sgd

HELD_OUT = 5  # every fifth example, when clients evaluate


@dataclass(frozen=True)
class Node:
    """The node's own configuration."""

    client: int
    clients: int
    state_dir: Path
    data: Path | None
    consent: Consent
    seed: int | None
    policy: Policy = Policy()


def _state_dir(config: Mapping[str, object], client: int) -> Path:
    if "state-dir" in config:
        return Path(str(config["state-dir"]))
    if "PRUNELLA_STATE_DIR" in os.environ:
        return Path(os.environ["PRUNELLA_STATE_DIR"]) / str(client) / "state"
    return Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr")) / "prunella" / str(client)


def read_node(config: Mapping[str, object]) -> Node:
    """The node's configuration, checked. Raises ``ConfigError``."""
    client = config.get("client-id", config.get("partition-id"))
    if not isinstance(client, int) or client < 0:
        raise ConfigError(
            "this SuperNode has no partition-id: start it with --node-config 'partition-id=0 num-partitions=2'"
        )
    consent = config.get("audit", os.environ.get("PRUNELLA_AUDIT", "deny"))
    if consent not in CONSENTS:
        raise ConfigError(f"audit={consent!r} in the node configuration: choose one of {', '.join(CONSENTS)}")
    seed = config.get("client-seed")
    return Node(
        client=client,
        clients=int(str(config.get("num-partitions", client + 1))),
        state_dir=_state_dir(config, client),
        data=Path(str(config["data"])) if "data" in config else None,
        consent=consent,
        seed=int(str(seed)) if seed is not None else None,
        policy=read_policy(config),
    )


class Session:
    """What a message handler needs, made when first used."""

    def __init__(self, context: Context) -> None:
        self.raw: Raw = {k: v for k, v in context.run_config.items() if isinstance(v, str | int | float | bool)}
        self.run: Run = parse_run(self.raw)
        self.node = read_node(context.node_config)
        check_run(self.node.policy, self.run, self.raw, self._privacy)
        self.device = pick_device(self.run.device)

    @cached_property
    def store(self) -> ClientStore:
        return ClientStore(self.node.state_dir, Path(self.run.run_dir).name or "run")

    @cached_property
    def accounts(self) -> Accounts:
        """What all runs have let through of the examples this one trains on or, where it evaluates, tells scores of."""
        told = self._all if self.run.evaluation == "clients" else self.examples
        return Accounts(self.store.home, self.store.folder.name, told.x)

    @cached_property
    def elsewhere(self) -> Ledger:
        """What other runs have let through of these examples; what this one writes down does not change it."""
        return self.accounts.elsewhere()

    @cached_property
    def _privacy(self) -> Privacy:
        return parse_section(self.raw, "privacy", Privacy)

    @cached_property
    def privacy(self) -> Privacy:
        """The run's, under this node's own budget where that is smaller."""
        return within(self.node.policy, self._privacy)

    @cached_property
    def task(self) -> Task:
        return make_task(self.run.model, self.run.dataset, self.node.data)

    @cached_property
    def like(self) -> tuple[Tree, Tree]:
        """Parameters and buffers as the model declares them; the values are not used."""
        return initial(self.task, 0)

    @cached_property
    def _all(self) -> Examples:
        partition = Partition(self.run.partition, self.node.clients, self.run.alpha, self.run.seed)
        return load_client(self.run.dataset, partition, self.node.client, self.node.data)

    @cached_property
    def examples(self) -> Examples:
        """The examples to train on: all, or four fifths when clients evaluate or the scheme validates."""
        if self.run.evaluation == "server" and not validates(self.run.strategy):
            return self._all
        keep = torch.arange(len(self._all.y)) % HELD_OUT != 0
        return Examples(self._all.x[keep], self._all.y[keep])

    @cached_property
    def held_out(self) -> Examples:
        return Examples(self._all.x[::HELD_OUT], self._all.y[::HELD_OUT])

    @cached_property
    def procedure(self) -> Procedure:
        run = self.run
        chain: Chain = build_chain(run.defense_names, self.raw)
        sgd = Sgd(run.learning_rate, run.momentum, run.weight_decay)
        return Procedure(self.task.build().to(self.device), sgd, chain, min(run.batch_size, len(self.examples)))

    def generator(self, round: int, purpose: str) -> torch.Generator:
        """A stream the server cannot draw, unless the node was given a ``client-seed``. What carries an epsilon is
        drawn anew in every run and for other examples: two answers with one noise would let the server subtract it."""
        if self.procedure.chain.private is not None:
            purpose = f"{purpose}|{self.store.folder.name}|{self.accounts.name}"
        secret = self.node.seed if self.node.seed is not None else self.store.secret()
        return stream(secret, round=round, client=self.node.client, purpose=purpose)

    def batches(self, round: int, steps: int | None = None, purpose: str = "batches") -> Iterator[Examples]:
        """The batches of a round; asked again, the same ones, so that an audit needs no copy of private data."""
        count = self.run.local_steps if steps is None else steps
        draw = batches if self.procedure.chain.private is None else poisson_batches
        for batch in draw(self.examples, self.run.batch_size, count, self.generator(round, purpose)):
            yield Examples(batch.x.to(self.device), batch.y.to(self.device))
