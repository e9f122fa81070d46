"""A round of local training at a client: what the run's scheme changes in it, and what leaves of its result, field by
field."""

from dataclasses import replace

from flwr.app import ConfigRecord, MetricRecord, RecordDict
from torch import nn

from prunella.client.planted import NOT_FINITE, PlantedCheck
from prunella.client.session import ServerRequest, Session
from prunella.core.errors import DefenseError
from prunella.core.trees import Mask, Tree, apply_mask, to_device, zeros_like
from prunella.pruning.channels import Group, channel_groups
from prunella.strategies.round.local import PLAIN, LocalResult, Procedure, Received
from prunella.strategies.round.plan import LocalPlan, RoundContext
from prunella.strategies.round.replies import build_reply
from prunella.tasks.task import initial as initial_weights
from prunella.tasks.task import layers, prunable
from prunella.tasks.training import evaluate as evaluate_model
from prunella.wire.encode import fingerprint


def plan_of(session: Session, round: int, received: Received, kept: dict[str, Tree]) -> LocalPlan:
    """What the run's scheme changes in this round, if it has a client half."""
    plan = session.scheme.client.plan
    if plan is None:
        return PLAIN
    module = session.procedure.module

    def accuracy(params: Tree) -> float:
        held_out = session.data.held_out
        return evaluate_model(module, params, received.buffers, held_out.x, held_out.y).accuracy

    def fresh() -> Tree:
        return to_device(initial_weights(session.data.task, session.run.seed)[0], session.device)

    def groups() -> list[Group]:
        return channel_groups(module, session.data.task.shape)

    params, mask, names, settings = received.params, received.mask, prunable(module), session.scheme_settings
    return plan(RoundContext(session.run, settings, round, params, mask, names, kept, fresh, accuracy, groups))


def watched(session: Session, request: ServerRequest, received: Received, procedure: Procedure) -> Procedure:
    """``procedure``, which ends before a step from weights that would copy single images. The received ones were asked
    already. Its probes are the request's: asked again, it ends where it ended. Without an ε what is not finite is
    refused, as a gradient is that is not."""
    task = session.data.task
    check = PlantedCheck(task.shape, task.classes, request.generator("planted"), received.params)

    def allows(module: nn.Module, params: Tree, buffers: Tree, step: int, begins: bool) -> bool:
        allowed = check.allows(module, params, buffers, step, begins)
        if check.ended == [NOT_FINITE] and procedure.chain.private is None:
            raise DefenseError("training led to values that are not finite")
        return allowed

    return replace(procedure, allows=allows)


def importance_names(session: Session, content: RecordDict, round: int) -> frozenset[str]:
    """Tensors whose squared gradients leave: those asked for, in the rounds in which the scheme uses them, or none."""
    sends, wanted = session.scheme.client.sends_importance, content.config_records["config"].get("importance")
    if sends is None or not isinstance(wanted, list) or not sends(session.scheme_settings, round):
        return frozenset()
    return prunable(session.procedure.module) & {str(name) for name in wanted}


def to_cpu(result: LocalResult) -> LocalResult:
    out = result.outgoing
    moved = type(out)(*(to_device(tree, "cpu") for tree in (out.update, out.shared, out.participates, out.local)))
    buffers, importance = to_device(result.buffers, "cpu"), to_device(result.importance, "cpu")
    base = to_device(result.base, "cpu")
    return replace(result, outgoing=moved, base=base, buffers=buffers, importance=importance)


def reply_of(
    session: Session, round: int, result: LocalResult, mask: Mask, names: frozenset[str], seconds: float
) -> RecordDict:
    """The allow-list: what leaves, field by field."""
    guarded = session.procedure.chain.guard is not None  # whose noise covers the update, not the squares beside it
    if guarded or not session.node.policy.covers_gradients:  # all zero: the server leaves it out of its mean
        result = replace(result, importance=zeros_like(result.importance))
    elif names:
        known, held = layers(session.procedure.module), session.data.held
        told = session.scheme.client.told(session.scheme_settings, round, result, known)
        told = told if held is None else apply_mask(told, held)
        result = replace(result, importance=told)
    provenance = ConfigRecord({"round": round, "mask": fingerprint(mask), "applied": list(result.applied)})
    provenance["values"] = session.run.values
    metrics = MetricRecord({"num-examples": len(session.data.examples.y)})
    # Under an ε the time would tell how large the Poisson batches were, and a guard's how hard the images were to hide.
    if session.procedure.chain.private is None and not guarded and not session.node.policy.conditions:
        metrics["train-seconds"] = seconds
    records = build_reply(result, mask, names, session.run.values)
    return RecordDict({**records, "metrics": metrics, "provenance": provenance})
