"""What can be known of a run's settings before any process starts: whether they fit together, and this machine.

Every setting alone was checked before (``core.config``, ``deploy.runtime.settings``). What only data can tell, such as
a client with too few examples, shows when it is loaded.
"""

from prunella.core.config import Raw, Run
from prunella.core.device import pick_device
from prunella.core.errors import ConfigError
from prunella.core.foreign import is_foreign
from prunella.privacy.chain import check_model, working_chain
from prunella.privacy.defense import DataDefense
from prunella.server.audit.address import check_cluster
from prunella.server.audit.queue import judging, ready_settings
from prunella.strategies import build_strategy
from prunella.strategies.round.robust import build_aggregator
from prunella.strategies.round.server_model import ServerModel
from prunella.tasks.data import has_test, make_task, require_folder
from prunella.tasks.per_example import require_unmixed
from prunella.tasks.task import Task, initial, prunable, require_fit


def require_test(run: Run, there: bool) -> None:
    """Raise ``ConfigError`` where the server evaluates and has nothing to evaluate on."""
    if not there and run.evaluation == "server":
        raise ConfigError(f"dataset {run.dataset!r} has no test examples on the server: set evaluation=clients")


def check_together(run: Run, raw: Raw, here: bool) -> None:
    """Refuse a chain in the wrong order, a model that does not take the images or that a defense cannot train, an
    attack that cannot judge a run and, where the run takes place ``here``, folders, devices and a cluster that are not
    there.
    Raises ``PrunellaError`` with the fix.
    """
    if run.audit_cluster and run.audit_every:
        check_cluster(run.audit_cluster, here)
    if not here and any(map(is_foreign, run.defense_names)):
        return  # somebody's own code lies on the machines that run it
    working_chain(run.defense_names, raw)
    build_aggregator(run, raw)
    if here:
        pick_device(run.device)
        if not run.audit_cluster:
            pick_device(run.attack_device)
        require_folder(run.dataset)
    elif run.dataset.partition(":")[2] or is_foreign(run.model) or is_foreign(run.attack):
        return
    task = make_task(run.model, run.dataset, None)
    require_test(run, has_test(run.dataset))
    check_model_of(task, run, raw)
    if run.audit_every:
        judging(run)
        if here:  # a prior lies on the server's machine
            ready_settings(run.attack, raw, task)


def check_model_of(task: Task, run: Run, raw: Raw) -> None:
    """Build what server and clients build of the model. Raises ``PrunellaError`` where one of them cannot."""
    module, chain = task.build(), working_chain(run.defense_names, raw)
    require_fit(task, module)
    params, buffers = initial(task, run.seed)
    check_model(chain, buffers)
    if chain.private is not None:
        require_unmixed(module)
    for link in chain.links:
        if not isinstance(link.defense, DataDefense):  # which are fitted on a client's images
            link.defense.init(params)
    build_strategy(run, raw, ServerModel(module, task.shape, tuple(params), prunable(module), None, task))
