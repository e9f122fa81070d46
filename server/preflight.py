"""What can be known of a run's settings before any process starts: whether they fit together, and this machine.

Every setting alone was checked before (``core.config``, ``deploy.runtime.settings``). What only data can tell, such as
a client with too few examples, shows when it is loaded.
"""

from pathlib import Path

from prunella.core.config import Raw, Run
from prunella.core.device import pick_device
from prunella.core.errors import ConfigError
from prunella.core.foreign import is_foreign
from prunella.privacy.chain import build_chain, check_model
from prunella.privacy.defense import DataDefense
from prunella.tasks.data import make_task
from prunella.tasks.task import initial, require_fit


def check_together(run: Run, raw: Raw, here: bool) -> None:
    """Refuse a chain in the wrong order, a model that does not take the images or that a defense cannot train and,
    where the run takes place ``here``, folders and devices that are not there. Raises ``PrunellaError`` with the fix.
    """
    if not here and any(map(is_foreign, run.defense_names)):
        return  # somebody's own code lies on the machines that run it
    chain, (_, _, place) = build_chain(run.defense_names, raw), run.dataset.partition(":")
    if here:
        pick_device(run.device)
        pick_device(run.attack_device)
        if place and not Path(place).is_dir():
            raise ConfigError(f"dataset {run.dataset!r}: there is no folder {place} on this machine")
    elif place or is_foreign(run.model):
        return
    task = make_task(run.model, run.dataset, None)
    require_fit(task, task.build())
    params, buffers = initial(task, run.seed)
    check_model(chain, buffers)
    for link in chain.links:
        if not isinstance(link.defense, DataDefense):  # which are fitted on a client's images
            link.defense.init(params)
