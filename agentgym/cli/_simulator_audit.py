"""What `agentgym simulator audit` does: compare a simulating model with real tools."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentgym.cli._columns import columns, cost_line
from agentgym.cli._counting import Counting
from agentgym.cli._inputs import checked, key_values, one_endpoint, write_json
from agentgym.client import SamplingParams
from agentgym.core import AgentEnv
from agentgym.errors import ConfigError

if TYPE_CHECKING:
    from agentgym.client import ModelClient
    from agentgym.simulators.audit import Fidelity, ToolFidelity

_LONGEST = 160


def audit(args: argparse.Namespace) -> int:
    """Compare, and say how like the real tools the simulator is.

    Returns:
        0; 1 if fewer calls than `--min-status` agree in status.
    """
    from agentgym.clients.connect import shared_client
    from agentgym.roles import Roles
    from agentgym.rollout.source import EnvSource
    from agentgym.simulators.audit import audit as compare
    from agentgym.simulators.tools import DEFAULT_SAMPLING, HostedTools

    if args.min_status is not None and not 0 <= args.min_status <= 1:
        raise ConfigError(f"--min-status is a share from 0 to 1, got {args.min_status}")
    if args.n < 1 or args.concurrency < 1:
        raise ConfigError(
            f"-n and --concurrency must be at least 1, got {args.n} and {args.concurrency}"
        )
    endpoint = one_endpoint(args, "simulator", who="simulates")
    Roles(simulator=endpoint).check_keys()
    sampling = DEFAULT_SAMPLING
    if args.max_tokens is not None:
        fields = {**sampling.model_dump(), "max_tokens": args.max_tokens}
        sampling = checked(SamplingParams, **fields)
    client = shared_client(endpoint)
    env = EnvSource(args.env, key_values(args.env_kwargs)).make().unwrapped
    if not isinstance(env, AgentEnv):
        raise ConfigError(f"{args.env} has no tools to compare with: it is no AgentEnv")
    policy = _policy(env, args)

    async def run() -> Fidelity:
        await client.preflight()
        return await compare(
            env,
            HostedTools(client, sampling=sampling),
            calls=args.n,
            policy=policy,
            seed=args.seed,
            concurrency=args.concurrency,
            on_call=counting.add,
        )

    try:
        with Counting("calls", args.n, quiet=args.quiet) as counting:
            found = asyncio.run(run())
    finally:
        env.close()
    text = json.dumps(
        {"simulator": endpoint.public(), **found.model_dump(mode="json")},
        indent=2,
        ensure_ascii=False,
    )
    if args.out:
        write_json(args.out, text)
    print(text if args.json else "\n".join(_lines(found, examples=args.examples)))
    return _is_below(found, args.min_status)


def _policy(env: AgentEnv, args: argparse.Namespace) -> ModelClient | None:
    from agentgym.clients.scripted import ScriptedClient
    from agentgym.rollout.policies import named_policy

    if args.policy is None:
        return None
    return ScriptedClient(named_policy(env, args.policy, seed=args.seed))


def _is_below(found: Fidelity, least: float | None) -> int:
    if least is None:
        return 0
    calls = sum(tool.calls for tool in found.tools)
    agree = sum(tool.same_status for tool in found.tools)
    if agree >= least * calls:
        return 0
    print(
        f"agentgym: not good enough: status agrees in {agree} of {calls} calls, "
        f"{least:.1%} are wanted",
        file=sys.stderr,
    )
    return 1


def _lines(found: Fidelity, *, examples: int) -> Iterator[str]:
    """The report as text."""
    header = ("tool", "calls", "faults", "status", "valid", "shape", "values")
    yield columns(header, map(_row, found.tools))
    calls = sum(tool.calls for tool in found.tools)
    yield f"\n{calls} calls of {found.episodes} episodes of {found.env_id}"
    if found.unobserved:
        yield f"never called: {', '.join(found.unobserved)}"
    for role, usage in found.spent.items():
        yield cost_line(role, usage)
    for tool in found.tools:
        for each in tool.examples[: max(examples, 0)]:
            arguments = json.dumps(each.arguments, ensure_ascii=False)
            yield f"\n{tool.name}({arguments:.{_LONGEST}})"
            yield f"  real       {each.real:.{_LONGEST}}"
            yield f"  simulated  {each.simulated:.{_LONGEST}}"
            if each.differs:
                yield f"  differs    {', '.join(each.differs):.{_LONGEST}}"


def _row(tool: ToolFidelity) -> tuple[str, ...]:
    return (
        tool.name,
        str(tool.calls),
        str(tool.faults),
        f"{tool.same_status / tool.calls:.1%}",
        f"{tool.valid / tool.results:.1%}" if tool.results else "-",
        "-" if tool.shape is None else f"{tool.shape:.1%}",
        "-" if tool.values is None else f"{tool.values:.1%}",
    )
