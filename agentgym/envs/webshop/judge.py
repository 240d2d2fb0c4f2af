"""The verifier: turns the worth of a purchase, computed by the environment, into a score."""

from agentgym.judge import Score
from agentgym.types import Episode


class PurchaseVerifier:
    """Scores an episode by what was bought: the original's reward, 0 without a purchase.

    Components are the original's reward parts by its names and ``task_score``, the reward before
    gates. Success is a ``task_score`` of exactly 1.
    """

    inline = True

    async def score(self, episode: Episode) -> Score:
        """Read the outcome of the episode."""
        outcome = episode.outcome
        score = float(outcome["score"])
        components = {name: float(value) for name, value in outcome["details"].items()}
        components["task_score"] = score
        return Score(
            total=score,
            components=components,
            correct=score == 1.0,
            completed=outcome["purchased"] is not None,
        )
