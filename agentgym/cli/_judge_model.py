"""The judge that a command line names."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from agentgym.cli._inputs import one_endpoint
from agentgym.errors import ConfigError

if TYPE_CHECKING:
    from agentgym.clients.connect import SharedClient
    from agentgym.judges.rubric import Rubric
    from agentgym.judges.rubric_judge import RubricJudge


class NamedJudge:
    """A model and a rubric as judge.

    Args:
        args: The command line.

    Raises:
        ConfigError: If the model is named twice or not at all, the rubric can't be read, or the key
            isn't there.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        from agentgym.clients.connect import shared_client
        from agentgym.judges.asking import DEFAULT_SAMPLING
        from agentgym.judges.rubric import DEFAULT_RUBRIC, Rubric
        from agentgym.judges.rubric_judge import RubricJudge
        from agentgym.roles import Roles

        self.endpoint = one_endpoint(
            args, "judge", who="judges", max_concurrency=max(args.concurrency, 1)
        )
        self.rubric: Rubric = Rubric.from_toml(args.rubric) if args.rubric else DEFAULT_RUBRIC
        if args.concurrency < 1:
            raise ConfigError(f"--concurrency must be at least 1, got {args.concurrency}")
        Roles(judge=self.endpoint).check_keys()
        sampling = DEFAULT_SAMPLING
        if args.max_tokens is not None:
            if args.max_tokens < 1:
                raise ConfigError(f"--max-tokens must be at least 1, got {args.max_tokens}")
            sampling = sampling.model_copy(update={"max_tokens": args.max_tokens})
        self._client: SharedClient = shared_client(self.endpoint)
        self.judge: RubricJudge = RubricJudge(self._client, self.rubric, sampling=sampling)
        backwards = self.rubric.model_copy(update={"criteria": self.rubric.criteria[::-1]})
        self.reordered_judge: RubricJudge = RubricJudge(self._client, backwards, sampling=sampling)

    async def preflight(self) -> None:
        """See that endpoint, key and model are right, by one tiny request.

        Raises:
            EndpointError: If they are not.
        """
        await self._client.preflight()

    @property
    def facts(self) -> dict[str, Any]:
        """What it is, without secrets."""
        return {
            "endpoint": self.endpoint.public(),
            "rubric": self.rubric.model_dump(mode="json"),
        }


def names_a_model(args: argparse.Namespace) -> bool:
    """Whether the command line names a judge of its own."""
    return bool(args.base_url or args.model or args.roles)
