"""One message's worth of a client: its settings, its data, its model, its defenses, its memory.

Everything comes from the node's own configuration and the run's settings; nothing from the server decides where files
lie or whether the client consents.

Node configuration: ``partition-id`` (or ``client-id``), ``num-partitions``, ``state-dir``, ``data``, ``audit``,
``width`` (the share of every layer's channels that this node trains, ``pruning.widths``), ``require``,
``epsilon-budget`` and ``delta`` (``client.policy``), ``sum-least``, ``sum-with``, ``sum-key`` and ``sum-peers``
(``client.trust``), ``importance`` (the file that a run asks for as ``channel-personalized.importance=site``) and, for
reproducible experiments only, ``client-seed``: noise that others can draw again promises nothing, so no ε and no nats
are printed with one. The virtual clients of a simulation have no configuration of their own: for them
``PRUNELLA_STATE_DIR``, ``PRUNELLA_AUDIT`` and ``PRUNELLA_IMPORTANCE`` in the environment stand in.
"""

import hmac
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from torch import Tensor

from prunella.client.accounts import APPS, Accounts
from prunella.client.policy import Policy, check_run, read_policy, within
from prunella.client.state import ClientStore
from prunella.client.trust import Trust, read_trust
from prunella.core.config import PLACES, Raw, Run, parse_run, parse_section
from prunella.core.device import pick_device
from prunella.core.errors import ConfigError
from prunella.core.randomness import PrivateGenerator, derived
from prunella.core.trees import Mask, Tree
from prunella.core.untrusted import figure
from prunella.privacy.accounting import Privacy
from prunella.privacy.chain import Chain, working_chain
from prunella.privacy.channel_personalized import own_map
from prunella.privacy.ledger.ledger import digest
from prunella.pruning.widths import require_no_statistics, sub_mask
from prunella.strategies import Scheme, find, require_summable, scheme_settings, validates
from prunella.strategies.round.local import Procedure
from prunella.strategies.round.roster import CONSENTS, MIN_WIDTH, Consent
from prunella.tasks.data import Examples, Partition, batches, load_client, make_task
from prunella.tasks.examples import poisson_batches
from prunella.tasks.recommended import settled
from prunella.tasks.task import Task, identity, initial
from prunella.tasks.training import Sgd

Loader = Callable[[str, Partition, int, Path | None], Examples]
HELD_OUT = 5  # every fifth example, when clients evaluate


@dataclass(frozen=True)
class NodeSettings:
    """The node's own configuration."""

    client: int
    clients: int
    state_dir: Path
    data: Path | None
    consent: Consent
    seed: int | None
    policy: Policy = Policy()
    width: float = 1.0
    trust: Trust = Trust()


def state_directory(config: Mapping[str, object], client: int) -> Path:
    """Where a client keeps its files: as its node says, or its environment."""
    if "state-dir" in config:
        return Path(str(config["state-dir"]))
    if "PRUNELLA_STATE_DIR" in os.environ:
        return Path(os.environ["PRUNELLA_STATE_DIR"]) / str(client) / "state"
    return Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr")) / "prunella" / str(client)


def read_node(config: Mapping[str, object]) -> NodeSettings:
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
    return NodeSettings(
        client=client,
        clients=int(str(config.get("num-partitions", client + 1))),
        state_dir=state_directory(config, client),
        data=Path(str(config["data"])) if "data" in config else None,
        consent=consent,
        seed=int(str(seed)) if seed is not None else None,
        policy=read_policy(config),
        width=read_width(config),
        trust=read_trust(config),
    )


def read_width(config: Mapping[str, object]) -> float:
    """The share of every layer's channels that this node trains. Raises ``ConfigError``."""
    width = figure(config.get("width", 1.0), MIN_WIDTH, 1.0)
    if width is None:
        raise ConfigError(f"width in the node configuration must be a number from {MIN_WIDTH} to 1")
    return width


@dataclass(frozen=True)
class ServerRequest:
    """One question of the server, named by a digest of all that its answer depends on.

    The digest keys every draw behind the answer, and it is what the account charges: the same question gets the same
    answer for nothing, and no two questions share any noise.
    """

    digest: str
    key: bytes

    def generator(self, purpose: str) -> PrivateGenerator:
        """Draws that the server cannot repeat, fresh for each purpose."""
        return PrivateGenerator(derived(self.key, self.digest, purpose))

    def commitment(self, answer: bytes) -> bytes:
        """What names an answer, 32 bytes: the same where the question and the answer are, else another, and to nobody
        without the key does it say more than that."""
        return hmac.digest(derived(self.key, self.digest, "commitment"), answer, "sha256")


class LocalData:
    """A client's examples, and the task they are for; each read when first used."""

    def __init__(self, run: Run, node: NodeSettings, load: Loader) -> None:
        self._run, self._node, self._load = run, node, load

    @cached_property
    def task(self) -> Task:
        return make_task(self._run.model, self._run.dataset, self._node.data)

    @cached_property
    def like(self) -> tuple[Tree, Tree]:
        """Parameters and buffers as the model declares them; the values are not used."""
        return initial(self.task, 0)

    @cached_property
    def all(self) -> Examples:
        partition = Partition(self._run.partition, self._node.clients, self._run.alpha, self._run.seed)
        return self._load(self._run.dataset, partition, self._node.client, self._node.data)

    @cached_property
    def examples(self) -> Examples:
        """The examples to train on: all, or four fifths when clients evaluate or the scheme validates."""
        return self.all if bool(self.trained.all()) else self.all.take(self.trained)

    @cached_property
    def trained(self) -> Tensor:
        """Truth values [N] over all examples: those to train on."""
        everything = self._run.evaluation == "server" and not validates(self._run.strategy)
        return (torch.arange(len(self.all)) % HELD_OUT != 0) | everything

    @cached_property
    def held_out(self) -> Examples:
        return self.all.take(torch.arange(len(self.all)) % HELD_OUT == 0)

    @cached_property
    def held(self) -> Mask | None:
        """What this node's width holds of the model; None: all. Raises ``ConfigError`` for a model with batch norm."""
        if self._node.width >= 1:
            return None
        require_no_statistics(self.like[1])
        return sub_mask(self.task.build(), self.task.shape, self._node.width)

    @cached_property
    def digest(self) -> str:
        """A digest of all examples and their order."""
        if self.all.pictures is None:
            return digest([{"x": self.all.x, "y": self.all.y}], "")
        return digest([{"y": self.all.y}], self.all.pictures.digest())

    @property
    def shown(self) -> str:
        """A digest of the examples to train on, in the form that the run has them in."""
        return digest([{"trained": self.trained}], f"{self.digest} {self.task.shape}")


class Session:
    """What a message handler needs, made when first used."""

    def __init__(self, context: Context) -> None:
        given = {k: v for k, v in context.run_config.items() if isinstance(v, str | int | float | bool)}
        own = context.node_config.get("importance", os.environ.get("PRUNELLA_IMPORTANCE"))
        #: the run's settings as all its clients are told them; ``raw`` has the map that is this client's own
        self.told: Raw = settled(given)
        self.raw: Raw = own_map(self.told, own)
        self.run: Run = parse_run(self.raw)
        self.node = read_node(context.node_config)
        require_summable(self.run, self.raw)
        check_run(self.node.policy, self.run, self.raw, self._privacy)
        self.name = self.run.name(context.run_id)
        self.device = pick_device(self.run.device)
        # A federation inside one process brings a loader of its own.
        self.data = LocalData(self.run, self.node, getattr(context, "load_client", load_client))

    @cached_property
    def store(self) -> ClientStore:
        return ClientStore(self.node.state_dir, self.name)

    @cached_property
    def accounts(self) -> Accounts:
        """What all runs have let through of this client's examples, those it trains on and those held out."""
        raw = self.data.all.raw
        if raw is None:
            raise ConfigError(
                f"dataset {self.run.dataset!r} does not tell its examples apart, so no account can be kept: choose "
                "another dataset"
            )
        return Accounts(self.store.home, raw, beside=self.store.home / APPS)

    @cached_property
    def _privacy(self) -> Privacy:
        return parse_section(self.raw, "privacy", Privacy)

    @cached_property
    def privacy(self) -> Privacy:
        """The run's, under this node's own budget where that is smaller."""
        return within(self.node.policy, self._privacy)

    @cached_property
    def scheme(self) -> Scheme:
        """What the run's strategy has clients do. Raises ``ConfigError`` for a strategy that is not of this release."""
        return find(self.run.strategy)

    @cached_property
    def scheme_settings(self) -> Any:
        return scheme_settings(self.run.strategy, self.raw)

    @cached_property
    def procedure(self) -> Procedure:
        run = self.run
        chain: Chain = working_chain(run.defense_names, self.raw)
        sgd = Sgd(run.learning_rate, run.momentum, run.weight_decay)
        task, expected = self.data.task, min(run.batch_size, len(self.data.examples))
        return Procedure(task.build().to(self.device), sgd, chain, expected, shape=task.shape)

    def procedure_of(self, round: int) -> Procedure:
        """At the round's learning rate; the dense network's in the rounds in which squared gradients of pruned weights
        may be asked for, whether they are or not: the same question has the same answer."""
        sends = self.scheme.client.sends_importance
        dense = sends is not None and sends(self.scheme_settings, round)
        sgd = replace(self.procedure.sgd, learning_rate=self.run.rate_in(round))
        return replace(self.procedure, sgd=sgd, shape=None if dense else self.procedure.shape)

    @cached_property
    def settings(self) -> str:
        """A digest of the run's settings, its places left out, and of the model's code. A machine or a release that
        rounds differently gives another answer to the same question: it is not sent (``client.charging.confirm``)."""
        plain = self.run.model_dump(exclude=PLACES)
        sections = {key: value for key, value in self.raw.items() if "." in key}
        model = identity(self.data.task, self.procedure.module)
        return digest([], json.dumps([plain, sections, model], sort_keys=True))

    @cached_property
    def _key(self) -> bytes:
        seed = self.node.seed
        return self.accounts.key() if seed is None else derived(b"client-seed", str(seed), str(self.node.client))

    @property
    def trained_under(self) -> str:
        """What an audit of a round must find as it was: settings, the model's code and the examples."""
        return digest([], f"{self.settings} {self.data.digest}")

    def request(self, kind: str, round: int, trees: Iterable[Tree] = ()) -> ServerRequest:
        """The question ``kind`` about ``round`` that came with ``trees`` and met this client in the state they say."""
        return ServerRequest(digest(trees, json.dumps([kind, round, self.settings, self.data.digest])), self._key)

    def trained(self, request: str) -> ServerRequest:
        """The request of an earlier round, by its digest."""
        return ServerRequest(request, self._key)

    def batches(self, request: ServerRequest, steps: int | None = None) -> Iterator[Examples]:
        """The batches of a request; asked again, the same ones, so that an audit needs no copy of private data."""
        for batch in self._drawn(self.data.examples, request, steps):
            yield Examples(batch.x.to(self.device), batch.y.to(self.device))

    def used(self, request: ServerRequest) -> Tensor:
        """The positions among the examples to train on of those in the batches of a round's request."""
        places = torch.arange(len(self.data.examples))
        drawn = [batch.y for batch in self._drawn(Examples(places, places), request)]
        found: Tensor = torch.unique(torch.cat(drawn))
        return found

    def _drawn(self, examples: Examples, request: ServerRequest, steps: int | None = None) -> Iterator[Examples]:
        count = self.run.local_steps if steps is None else steps
        draw = batches if self.procedure.chain.private is None else poisson_batches
        return draw(examples, self.run.batch_size, count, request.generator("batches"))
