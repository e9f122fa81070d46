"""Settings of a run, parsed once at the edge.

Flower hands an app its settings as a flat mapping of kebab-case keys. Keys without a dot are ``Run``; keys with one
belong to the algorithm before the dot (``dgp.top``) and are parsed into that algorithm's own frozen dataclass by
``parse_section``. Unknown keys are errors that name the nearest valid one.

>>> parse_run({"rounds": 3, "dataset": "digits"}).rounds
3
>>> parse_run({"round": 3})
Traceback (most recent call last):
core.errors.ConfigError: unknown setting 'round': did you mean 'rounds'? Valid: ...
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from prunella.core.errors import ConfigError, unknown

Raw = Mapping[str, str | int | float | bool]
Rate = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Part = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10**9)]
T = TypeVar("T")
# Settings that no answer of a client depends on: where the server keeps what, how it waits, how many rounds there are.
PLACES = {"run_dir", "resume", "metrics_address", "poll_seconds", "round_seconds", "rounds"}
PLACES |= {"evaluate_every", "evaluate_examples", "audit_cluster"}
RATE, AUTO = "learning-rate", "auto"  # settled before it is parsed here: tasks.recommended


def kebab(name: str) -> str:
    return name.replace("_", "-")


class Run(BaseModel):
    """What all parts of a run must agree on. Field ``learning_rate`` is the setting ``learning-rate``, and so on."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=kebab, populate_by_name=True, protected_namespaces=()
    )

    # the task
    #: an entry of the list; `@1x64x64` behind imagefolder resizes; `:/path` says where the files lie; a client's own
    #: `--data` comes first
    dataset: str = "digits"
    model: str = "cnn"  #: an entry of the list, or a function of your own as `package.module:function`
    #: how one dataset is shared out: iid evenly, dirichlet with skewed classes, natural by writer or person where the
    #: data says
    partition: Literal["iid", "dirichlet", "natural"] = "dirichlet"
    alpha: Positive = 1.0  #: of the Dirichlet partition: the smaller, the more the classes differ between clients
    # the federation
    rounds: Count = 10  #: rounds of training
    #: of everything that is drawn in the open: partition, weights, masks, the choice of clients; never of a defense's
    #: noise
    seed: Annotated[int, Field(ge=0)] = 0
    min_clients: Count = 2  #: fewer clients online and a round waits; fewer valid replies and it does not count
    expected_clients: Annotated[int, Field(ge=0)] = 0  #: the first round waits for this many; the launcher sets it
    #: SuperNodes prove who they are and a client number stays with its key; `prunella submit` sets it
    registered_keys: bool = False
    fraction: Share = 1.0  #: share of the clients that take part in a round
    #: number of parts into which clients are sorted by the time they take; a round asks clients of one part, and every
    #: client equally often over the run; 1: off
    speed_tiers: Count = 1
    round_seconds: Positive = 600.0  #: a reply that takes longer counts as a timeout and is left out
    #: holders: the mean over the clients that shared a coordinate; as_printed: a withheld coordinate counts as zero;
    #: secure-sum: masked updates, of which the server learns the sum alone
    aggregation: Literal["holders", "as_printed", "secure-sum"] = "holders"
    #: none: one malicious client decides the mean; median, trimmed-mean: tolerate `liars` of them; norm-bound: bounds
    #: their damage
    robust: str = "none"
    #: how clients send an update's values: exact, or rounded to float16 or int8 with one scale for each tensor
    values: Literal["float32", "float16", "int8"] = "float32"
    #: where accuracy is measured: on the server's held-out examples, or on those of the clients, which also keeps the
    #: best round
    evaluation: Literal["server", "clients"] = "server"
    #: rounds from one evaluation on all examples to the next; the last round always has one
    evaluate_every: Count = 1
    #: of the server's test examples, those that a round in between is evaluated on, the same ones each time; 0: none
    evaluate_examples: Annotated[int, Field(ge=0)] = 0
    # local training
    local_steps: Count = 8  #: steps of local training in a round
    batch_size: Count = 16  #: examples in a step
    #: of the clients' SGD; auto is the rate that the dataset's line recommends: 0.25 for digits
    learning_rate: Positive = 0.25
    learning_rate_decay: Share = 1.0  #: factor on the clients' learning rate after every round
    #: rounds, no fewer than the run's, over which the clients' learning rate falls to zero along half a cosine; 0: it
    #: does not
    learning_rate_horizon: Annotated[int, Field(ge=0)] = 0
    momentum: Rate = 0.0  #: of the clients' SGD; it starts from zero in every round
    weight_decay: Weight = 0.0  #: of the clients' SGD
    #: where clients train and, if it has one, the server evaluates: auto takes CUDA if PyTorch sees it, else the CPU;
    #: or a PyTorch device
    device: str = "auto"
    # pruning, defenses, audit
    strategy: str = "prunefl"  #: the pruning scheme; an entry of the list
    rate: Rate = 0.3  #: share of the prunable weights that the scheme removes
    #: comma-separated, in order: data before gradient before update; or your own as `package.module:NAME`
    defenses: str = "priprune"
    #: what the server attacks with; an entry of the list (label replays traces only), or your own as
    #: `package.module:NAME`
    attack: str = "portfolio"
    #: where audits run: auto takes CUDA if PyTorch sees it, else the CPU; or a PyTorch device
    attack_device: str = "auto"
    #: rounds between audits, beside those of the first round, of the last, and of the first in which squared gradients
    #: leave beside a defended update; 0: none
    audit_every: Annotated[int, Field(ge=0)] = 10
    #: most consenting clients whose update is attacked in an audited round; a masked sum is scored by all its clients
    audit_clients: Count = 1
    audit_workers: Count = 2  #: audits that run at the same time, each a process of its own
    #: `ray://host:10001`, a Ray cluster that runs the audits, or `auto`: what the server's `RAY_ADDRESS` says; empty:
    #: the server's machine
    audit_cluster: str = ""
    #: most seconds of one audit's attack, which then ends with what it has; the run's end waits as long for each left
    audit_seconds: Positive = 600.0
    #: whether audited clients are asked, at the end of the run, if their examples can be told from others of theirs
    membership: bool = True
    # where the server keeps the run; the launcher fills these in
    #: directory on the server that keeps the run; empty: `prunella/runs/` and Flower's number of it, in `FLWR_HOME`
    run_dir: str = ""
    resume: bool = False  #: go on from the last checkpoint in `run-dir`
    metrics_address: str = ""  #: host:port of the live page and of `/metrics`; empty: none
    poll_seconds: Positive = 0.1  #: seconds between two looks of the server for replies, at first

    def name(self, number: int) -> str:
        """What server and clients call the run: the last part of ``run_dir``, or else Flower's ``number`` of it.

        >>> Run(run_dir="/runs/first").name(7), Run().name(7)
        ('first', '7')
        """
        return Path(self.run_dir).name or str(number)

    @model_validator(mode="after")
    def _learns_to_the_end(self) -> Self:
        if 0 < self.learning_rate_horizon < self.rounds:
            raise ValueError(
                f"learning-rate-horizon: nothing is left of the rate in round {self.learning_rate_horizon + 1}: "
                f"choose at least the rounds, {self.rounds}"
            )
        if self.rate_in(self.rounds) == 0:
            raise ValueError(
                f"learning-rate-decay: nothing is left of the rate in round {self.rounds}: choose one nearer to 1"
            )
        return self

    def rate_in(self, round: int) -> float:
        """The clients' learning rate in a round, the first of which is 1. Under ``learning_rate_horizon`` it falls
        along a cosine without restarts (Loshchilov and Hutter 2017, Eq. 5), beside the factor of every round.

        >>> Run(learning_rate=0.1, learning_rate_decay=0.5).rate_in(3)
        0.025
        """
        cosine = 1.0
        if self.learning_rate_horizon:
            cosine = (1 + math.cos(math.pi * min(1.0, (round - 1) / self.learning_rate_horizon))) / 2
        return self.learning_rate * self.learning_rate_decay ** (round - 1) * cosine

    @property
    def defense_names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.defenses.split(",") if name.strip()) or ("none",)

    def audits(self, round: int) -> bool:
        """Whether a round is audited: every ``audit_every``, the last, and the first, in which the weights have learnt
        nothing yet that hides an image, and a defense that learns or remembers has nothing to do so with."""
        return self.audit_every > 0 and (round % self.audit_every == 0 or round in (1, self.rounds))


def _explain(error: ValidationError, prefix: str = "") -> str:
    lines = []
    for item in error.errors(include_url=False, include_input=False):
        key = (prefix + ".".join(kebab(str(part)) for part in item["loc"])).removesuffix(".")
        message = item["msg"].removeprefix("Value error, ")  # pydantic's, of a rule of our own, whose words say which
        lines.append(message if message.startswith(key) else f"{key}: {message[0].lower()}{message[1:]}")
    return "; ".join(lines)


def parse_run(raw: Raw) -> Run:
    """``Run`` from the keys without a dot. Raises ``ConfigError``."""
    plain = {key: value for key, value in raw.items() if "." not in key}
    valid = [kebab(name) for name in Run.model_fields]
    for key in plain:
        if key not in valid:
            raise unknown("setting", key, valid)
    try:
        return Run.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from None


def parse_section(raw: Raw, name: str, settings: type[T]) -> T:
    """The frozen dataclass ``settings`` from the keys ``name.*``; fields without a key keep their default.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Dual:
    ...     top: Rate = 0.05
    >>> parse_section({"dgp.top": 0.1}, "dgp", Dual)
    Dual(top=0.1)
    """
    prefix = f"{name}."
    given: dict[str, Any] = {key.removeprefix(prefix): value for key, value in raw.items() if key.startswith(prefix)}
    fields = {kebab(f.name): f for f in dataclasses.fields(settings)}  # type: ignore[arg-type]
    for key in given:
        if key not in fields:
            raise unknown("setting", prefix + key, [prefix + valid for valid in fields])
    try:
        return TypeAdapter(settings).validate_python({fields[key].name: value for key, value in given.items()})
    except ValidationError as error:
        raise ConfigError(_explain(error, prefix)) from None


def check_sections(raw: Raw, sections: Mapping[str, type]) -> None:
    """Parse every dotted key into its section, so that mistakes in sections without use in this run are found too."""
    names = {key.split(".", 1)[0] for key in raw if "." in key}
    for name in sorted(names):
        if name not in sections:
            raise unknown("section of settings", name, sections)
        parse_section(raw, name, sections[name])


def section_defaults(name: str, settings: type) -> dict[str, Any]:
    """The flat keys and defaults of a section, as ``pyproject.toml`` lists them."""
    return {f"{name}.{kebab(f.name)}": f.default for f in dataclasses.fields(settings)}
