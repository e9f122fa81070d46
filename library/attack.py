"""An attack on a view in one call, and its answer as something to look at.

The settings of an attack are keywords here, with underscores: ``iterations=1000`` is the setting ``sgi.iterations``.
"""

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from torch import Tensor

from prunella.attacks import find_attack
from prunella.attacks.engine.attackable import require_images
from prunella.attacks.engine.resume import ResumeStore
from prunella.core.config import kebab, parse_section
from prunella.core.device import pick_device
from prunella.core.errors import AttackError, ConfigError, with_article
from prunella.core.files import write_tree
from prunella.core.memory import keep_freed_memory
from prunella.core.randomness import stream
from prunella.core.types import ServerView
from prunella.library import DEFAULT_ATTACK, pictures
from prunella.library.pace import Pace, Tell
from prunella.library.view import View
from prunella.server.audit.attempt import Order, attempt
from prunella.server.report.units import plural
from prunella.tasks.task import Task


@dataclass(frozen=True)
class Result:
    """What an attack made of a view. ``images`` [N, C, H, W] in [0, 1], None for an attack on labels only; ``labels``
    [N] or None; ``objective``: lower explains the update better. A notebook shows the images."""

    attack: str
    threat: str
    images: Tensor | None
    labels: Tensor | None
    objective: float
    iterations: int
    explained: bool | None
    found_by: str | None = field(default=None)

    def __repr__(self) -> str:
        rebuilt = "no images"
        if self.images is not None:
            rebuilt = f"{plural(len(self.images), 'image')} of {tuple(self.images.shape[1:])}"
        labels = "" if self.labels is None else f", labels {self.labels.tolist()}"
        by = f" ({self.found_by})" if self.found_by else ""
        fit = f"objective {self.objective:.4g} after {plural(self.iterations, 'iteration')} (lower fits better)"
        return f"{self.attack}{by}: {rebuilt}{labels}; {fit}"

    def _repr_png_(self) -> bytes | None:
        return None if self.images is None else pictures.encode(pictures.sheet(self.images))

    def _repr_html_(self) -> str:
        shown = self._repr_png_()
        picture = "" if shown is None else f'<img alt="rebuilt images" src="{data_uri(shown)}">'
        return f"<p>{escape(repr(self))}</p>{picture}"

    def save(self, path: str | Path) -> Path:
        """Write the images as one PNG or, under a name that ends in ``.safetensors``, images x and labels y. Only the
        owner can read the file."""
        path = Path(path)
        if path.suffix == ".safetensors":
            named = {"x": self.images, "y": self.labels}
            write_tree(path, {name: tensor for name, tensor in named.items() if tensor is not None})
            return path
        if path.suffix != ".png" or self.images is None:
            raise ConfigError(f"{path.name}: images are saved as .png, images and labels as .safetensors")
        return pictures.write(pictures.sheet(self.images), path)


def data_uri(png: bytes) -> str:
    """A PNG as the address of itself."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def settings_for(name: str, given: dict[str, Any]) -> Any:
    """The settings of the attack ``name`` from keywords. Raises ``ConfigError`` that names the nearest one."""
    return parse_section(
        {f"{name}.{kebab(key)}": value for key, value in given.items()}, name, find_attack(name).settings
    )


def attack(
    view: View | tuple[ServerView, Task] | tuple[ServerView, Task, Any],
    name: str = DEFAULT_ATTACK,
    *,
    seed: int = 0,
    progress: bool | Callable[[str], None] = False,
    device: str = "auto",
    **settings: Any,
) -> Result:
    """Attack a ``view``, of ``prunella.view`` or as ``prunella.load_trace`` returns it, and return the images.

    ``name`` is one of ``prunella.ATTACKS`` or your own as ``package.module:NAME``; ``settings`` are those of that
    attack (docs/settings.md), with underscores. ``progress=True`` prints how far it is and the time left every few
    seconds; a function gets the same lines. The same ``seed`` gives the same images. Raises ``ConfigError`` for a name
    or a setting that is unknown, ``AttackError`` where this attack cannot run on this view.
    """
    if not isinstance(view, View) and not (isinstance(view, tuple) and view and isinstance(view[0], ServerView)):
        raise ConfigError(f"attack takes a view, not {with_article(view)}: make one by prunella.view(model, ...)")
    seen, task = (view.seen, view.task) if isinstance(view, View) else view[:2]
    entry, chosen = find_attack(name), settings_for(name, settings)
    require_images(seen, task)
    if entry.needs:
        raise AttackError(f"{name} needs {', '.join(entry.needs)} beside a view: run it by `prunella audit`")
    keep_freed_memory()
    store = ResumeStore(tell=teller(chosen, progress))
    order = Order(name, chosen, stream(seed, purpose="replay"))
    found = attempt(seen.on(pick_device(device)), task, order, store)
    rebuilt = found.rebuilt
    images = rebuilt.x if entry.gives == "images" else None
    fit = rebuilt.objective, rebuilt.iterations, found.explained
    return Result(name, entry.threat, images, rebuilt.y, *fit, rebuilt.found_by)


def teller(settings: Any, progress: bool | Callable[[str], None], what: str = "") -> Tell | None:
    """What a ``ResumeStore`` calls at every iteration, or None where nobody wants to know."""
    if not progress:
        return None
    return Pace(getattr(settings, "iterations", 0), print if progress is True else progress, what).tell
