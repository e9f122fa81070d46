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
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from prunella.core.errors import ConfigError, unknown

Raw = Mapping[str, str | int | float | bool]
Rate = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10**9)]
T = TypeVar("T")


def kebab(name: str) -> str:
    return name.replace("_", "-")


class Run(BaseModel):
    """What all parts of a run must agree on. Field ``learning_rate`` is the setting ``learning-rate``, and so on."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=kebab, populate_by_name=True, protected_namespaces=()
    )

    # the task
    dataset: str = "digits"
    model: str = "cnn"
    partition: Literal["iid", "dirichlet", "natural"] = "dirichlet"
    alpha: Positive = 1.0
    # the federation
    rounds: Count = 10
    seed: Annotated[int, Field(ge=0)] = 0
    min_clients: Count = 2
    expected_clients: Annotated[int, Field(ge=0)] = 0
    registered_keys: bool = False
    fraction: Share = 1.0
    round_seconds: Positive = 600.0
    aggregation: Literal["holders", "as_printed"] = "holders"
    robust: str = "none"
    values: Literal["float32", "float16", "int8"] = "float32"
    evaluation: Literal["server", "clients"] = "server"
    # local training
    local_steps: Count = 8
    batch_size: Count = 16
    learning_rate: Positive = 0.25
    momentum: Rate = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    device: str = "auto"
    # pruning, defenses, audit
    strategy: str = "prunefl"
    rate: Rate = 0.3
    defenses: str = "priprune"
    attack: str = "sgi"
    attack_device: str = "auto"
    audit_every: Annotated[int, Field(ge=0)] = 5
    audit_clients: Count = 1
    audit_workers: Count = 2
    audit_seconds: Positive = 600.0
    # where the server keeps the run
    run_dir: str = ""
    resume: bool = False
    metrics_address: str = ""
    poll_seconds: Positive = 0.1

    @property
    def defense_names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.defenses.split(",") if name.strip()) or ("none",)


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
