"""An advice in words: what to choose, what it costs, what it does not protect against, and the command that runs it."""

import math
import shlex
from collections.abc import Sequence

from prunella.benchmarks.advise.proposals import Question, settings_of, shortlist
from prunella.benchmarks.advise.search import SETTLED, Advice, Standing, Tier, lost, lost_interval
from prunella.library import DEFAULT_ATTACK
from prunella.privacy import find_defense
from prunella.privacy.defense import HEURISTIC
from prunella.server.report.state import LARGEST_EPSILON
from prunella.server.report.units import capital, plural
from prunella.strategies.secure_sum.vector import NAME as SECURE_SUM

SHOWN: dict[Tier, str] = {
    "promised": "nothing rebuilt, and an ε",
    "clear": "nothing rebuilt, no ε",
    "open": "nothing rebuilt, not explained, no ε",
    "traces": "traces",
    "unknown": "not judged",
    "rebuilt": "rebuilt",
}


def cost(one: Standing, reference: Standing) -> str:
    """What an accuracy costs against the reference's."""
    points, ends = lost(one, reference), lost_interval(one, reference)
    between = "" if ends is None else f" [{ends[0]:.1f}, {ends[1]:.1f}]"
    return f"{points:.1f}{between} points of accuracy"


def worst_case(question: Question) -> str:
    """What is attacked as the worst case."""
    return f"one public image{' of each site' if summed(question) else ''} in one step"


def summed(question: Question) -> bool:
    """Whether the server is sent masked sums, and no update of one site."""
    return question.settings["aggregation"] == SECURE_SUM


def leaked(one: Standing, question: Question) -> str:
    """What came back of public images in the worst case and in its rounds."""
    rebuilt, judged = one.share("rebuilt")
    if not judged:
        return "the attack failed on its control, so nothing is known of what it lets through"
    traces, _ = one.share("traces")
    of = f"in {{}} of {plural(judged, 'federation')}"
    said = f"an image was rebuilt {of.format(rebuilt)}" if rebuilt else ""
    said = said or (f"something came through {of.format(traces)}" if traces else "")
    mean = " on average" if len(one.rows) > 1 else ""
    decibels = "" if one.psnr is None else f" (worst case, {worst_case(question)}: {one.psnr:.0f} dB{mean})"
    told_apart = ", and examples that were trained on were told from others" if one.members else ""
    return (said or f"nothing was rebuilt in {plural(judged, 'federation')}") + decibels + told_apart


def headline(advice: Advice, may_lose: float) -> str:
    """The answer in a sentence.

    It never calls a chain safe from which an image came back, or of which nothing is known.
    """
    chosen, name = advice.chosen, advice.chosen.proposal.name
    limit = f"{may_lose:g} {'point' if may_lose == 1 else 'points'} of accuracy"
    if not advice.protects and not advice.defended:
        return "No defense was tried yet, so this is no answer."
    if not advice.protects:
        start = f"Nothing that was tried protects for at most {limit}."
        if advice.safest is None:
            return f"{start} Nor did anything that costs more."
        safest = advice.safest
        why = f"ε {safest.epsilon:.3g}" if math.isfinite(safest.epsilon) else SHOWN[safest.tier]
        return f"{start} What does is {safest.proposal.name} ({why}), for {cost(safest, advice.reference)}."
    ends = {
        "promised": f"It has ε {chosen.epsilon:.3g}, which bounds what any attack can tell about one example.",
        "clear": "It has no ε: that is what today's attacks show, and no promise.",
        "open": "It has no ε, and the attack does not explain its updates: one that does may rebuild images.",
    }
    judged, many = chosen.share("baseline")[1], len(chosen.rows)
    blind = (
        "" if judged == many else f" What it lets through could be judged in {judged} of {plural(many, 'federation')}."
    )
    return f"If at most {limit} may go: {name}. {ends[chosen.tier]}{blind}"


def reasons(advice: Advice, question: Question) -> list[str]:
    """What the headline rests on."""
    one, reference = advice.recommended, advice.reference
    if not advice.answered:
        if not advice.defended:
            return [
                f"{capital(one.proposal.name)}: {leaked(one, question)}.",
                "The same command with more time goes on.",
            ]
        least = f"The least came back behind {one.proposal.name}: {leaked(one, question)}."
        return [least, "More time tries more strengths of each defense; a defense with an ε needs a model that learns."]
    found = [
        f"It costs {cost(one, reference)} against {reference.proposal.name} ({reference.accuracy:.1%}).",
        f"{capital(leaked(one, question))}; without a defense {leaked(reference, question)}.",
    ]
    if advice.safest is not None and advice.safest is not one:
        other = advice.safest
        what = f"ε {other.epsilon:.3g}" if math.isfinite(other.epsilon) else SHOWN[other.tier]
        found.append(f"Better protected: {other.proposal.name} ({what}) for {cost(other, reference)}.")
    if math.isfinite(one.epsilon):
        delta, planned = question.settings["privacy.delta"], question.settings["rounds"]
        own = f"what {question.short} rounds spent; more rounds spend more" if one.proposal.epsilon is None else ""
        found.append(
            f"Its ε is {own or f'for {planned} rounds'}, at δ {delta:g}, at the site with the fewest examples."
        )
    if len(one.rows) < SETTLED:
        found.append(
            f"It rests on {plural(len(one.rows), 'federation')}; a recommendation should have {SETTLED}. The same "
            "command with more time goes on."
        )
    return found


def untried(found: Sequence[Standing], question: Question) -> list[str]:
    """Which chains the budget left out, as a sentence; nothing where each was tried once."""
    listed, tried = shortlist(question, question.rates[0]), {each.proposal for each in found}
    missing = [each.name for each in listed if each not in tried]
    if not missing:
        return []
    of = f"{len(listed) - len(missing)} of {len(listed)} chains were tried"
    return [f"Only {of} within the budget, so this is no comparison yet; left out: {'; '.join(missing)}."]


def limits(one: Standing, question: Question) -> list[str]:
    """What the recommended chain does not protect against."""
    names = [name for name in one.proposal.chain.split(",") if name != "none"]
    claims = {name: find_defense(name).claim for name in names}
    found = [f"{name}: {claim}." for name, claim in claims.items()]
    if not math.isfinite(one.epsilon):
        found.append("A stronger attack, or one that knows more, may rebuild what these did not.")
        found.append("Nothing bounds what the updates tell about who is in the training data.")
    else:
        found.append("ε is of one example: what all examples of a site have in common is not hidden.")
    if any(claim == HEURISTIC for claim in claims.values()) and math.isfinite(one.epsilon):
        found.append("Of the parts without an ε only bytes are to be expected.")
    if any(row.get("worst", {}).get("explained") is False for row in one.rows):
        found.append("The attack does not explain its updates: that it rebuilt nothing there shows nothing.")
    if one.members:
        found.append("Examples that were trained on were told from others better than by chance.")
    if open_rounds := sum(row.get("rounds") == "unknown" for row in one.rows):
        found.append(
            f"What the clients' own rounds give away could not be judged in {open_rounds} of "
            f"{plural(len(one.rows), 'federation')}: there the attack fails without a defense, too, does not finish, "
            "or does not explain the updates."
        )
    if (spent := max(one.values("epsilon"), default=0.0)) > LARGEST_EPSILON:
        found.append(f"It spent ε {spent:.3g}, and only one of at most {LARGEST_EPSILON:g} counts as one here.")
    if any(name.startswith("channel-") for name in names) and question.examples < question.pixels:
        found.append(
            f"A channel fitted on {question.examples} images, the smallest site's, knows fewer directions than their "
            f"{question.pixels} pixels have: its nats bound little of what tells them from other people's."
        )
    return found + _untried(question)


def _untried(question: Question) -> list[str]:
    """Which servers, attacks and rounds nothing here is about."""
    found = []
    if summed(question):
        found.append(
            "What was attacked are sums of all sites, as a server that follows the protocol sees them: one that lies "
            "may see single updates (docs/secure-aggregation.md)."
        )
    if (attack := question.settings["attack"]) != DEFAULT_ATTACK:
        found.append(f"Only {attack} attacked it; {DEFAULT_ATTACK} asks every attack that fits.")
    if question.short < int(question.settings["rounds"]):
        found.append(f"Tried for {question.short} rounds: later rounds of a longer run were not attacked.")
    return found


def command(one: Standing, question: Question) -> str:
    """The line that runs it, with what the user typed."""
    asked = {**question.given, **settings_of(one.proposal, question)}
    set_here = [f"-c {key}={shlex.quote(str(value))}" for key, value in asked.items()]
    return " ".join(["prunella run", f"--supernodes {question.sites}", *set_here])


def unanswered(found: Sequence[Standing]) -> str:
    """Why there is no advice, where nothing without a defense learned."""
    why = next((each.trouble for each in found if each.proposal.chain == "none" and each.trouble), "")
    return f"No advice: without a defense this model did not learn here ({why})." if why else "No advice yet."
