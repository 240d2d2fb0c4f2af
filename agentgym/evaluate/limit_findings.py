"""What stops episodes short, or makes their calls unreadable, and whether an answer comes at all.

The 10 % and 5 % are those of AWS SageMaker AI, "Best practices for multi-turn RL" (2 July 2026).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentgym.evaluate.base_episodes import BaseEpisode
from agentgym.evaluate.finding import (
    MOST,
    Finding,
    judged_of,
    limit_finding,
    percent,
    scored_of,
    share_of,
)

TURN_CAP, TOKEN_LIMIT = 0.10, 0.05


def unscored(episodes: Sequence[BaseEpisode]) -> Finding:
    """Episodes without a score, which are in no other figure."""
    missing = [episode for episode in episodes if not episode.scored]
    classes = Counter(episode.failure_class or "unknown" for episode in missing)
    named = ", ".join(f"{name} {count}" for name, count in classes.most_common())
    said = f"{len(missing)} of {len(episodes)} episodes have no score"
    return Finding(
        name="unscored",
        status="note" if missing else "ok",
        said=f"{said} ({named}); no other figure has them" if missing else said,
        rule="no limit has been published; what can't be scored is seldom a random part of the "
        "tasks",
        numbers={"count": len(missing), "n": len(episodes)},
    )


def turn_cap(episodes: Sequence[BaseEpisode]) -> Finding:
    """Episodes that run out of turns without a final answer."""
    return limit_finding(
        "turn_cap",
        scored_of(episodes),
        lambda episode: episode.unanswered_at_cap,
        TURN_CAP,
        what="hit max_turns without a final answer",
        rule=f"alarm at {TURN_CAP:.0%} of episodes (AWS)",
        change="max_turns = ceil(1.5 × turns a human needs); then a prompt that says how to finish",
    )


def token_limit(episodes: Sequence[BaseEpisode]) -> Finding:
    """Episodes with a message that the per-turn token limit ends."""
    rule = f"alarm at {TOKEN_LIMIT:.0%} of episodes (AWS)"
    known = [episode for episode in scored_of(episodes) if episode.cut_off is not None]
    if not known:
        return Finding(
            name="token_limit",
            status="not_measured",
            said="a result without its traces doesn't say which messages were cut off",
            rule=rule,
        )
    return limit_finding(
        "token_limit",
        known,
        lambda episode: episode.cut_off is True,
        TOKEN_LIMIT,
        what="have a message cut off by the per-turn token limit",
        rule=rule,
        change="a higher limit of tokens per turn; or shorter reasoning, by the prompt",
    )


def context_limit(episodes: Sequence[BaseEpisode]) -> Finding:
    """Episodes that don't fit in the context."""
    return limit_finding(
        "context_limit",
        scored_of(episodes),
        lambda episode: episode.context_full,
        TOKEN_LIMIT,
        what="end because the context is full",
        rule=f"none published; {TOKEN_LIMIT:.0%} as for the token limit",
        change="a longer context; or shorter tool results",
    )


def malformed(episodes: Sequence[BaseEpisode]) -> Finding:
    """Episodes with calls that can't be read."""
    return limit_finding(
        "malformed",
        scored_of(episodes),
        lambda episode: episode.malformed,
        MOST,
        what="have a call or action that can't be read",
        rule="no limit has been published; here: most episodes, since output format against parser "
        "is the first suspect of a run that is flat from step 0 (AWS)",
        change="one episode's first message, read against the tools or the text grammar; then the "
        "model's own tool format, or an example in the prompt",
    )


def completion(episodes: Sequence[BaseEpisode]) -> Finding:
    """Whether a final answer comes, and whether it is right: two different things."""
    judged = judged_of(episodes)
    rule = (
        "right but seldom finished: the turn budget; finished but seldom right: the reward, or the "
        "task's difficulty (AWS; what counts as seldom is not said)"
    )
    if not judged:
        return Finding(
            name="completion", status="not_measured", said="no episode is judged", rule=rule
        )
    finished = share_of(judged, lambda episode: episode.completed)
    said = f"a final answer comes in {percent(finished)} of episodes"
    numbers = {"completed": finished.mean}
    answered = [episode for episode in judged if episode.completed]
    if answered:
        right = share_of(answered, lambda episode: episode.correct is True)
        said += f", and {percent(right)} of those are right"
        numbers["correct_if_completed"] = right.mean
    return Finding(name="completion", status="note", said=said, rule=rule, numbers=numbers)
