"""What every worker is sent before anything else: the environment, the policy, the setting.

It is pickled once, by Ray's cloudpickle, which takes functions of a notebook, too. Clients hold
connections and locks and stay behind: an endpoint is sent, and each worker makes a client of its
own. Keys are not sent; they are read where the call is made.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentgym.client import Endpoint
from agentgym.clients.balanced import BalancedClient
from agentgym.clients.chat import ChatClient
from agentgym.clients.connect import SharedClient, connects_directly
from agentgym.errors import ConfigError, MissingExtraError
from agentgym.rollout.cluster_desk import is_rationed
from agentgym.rollout.source import EnvSource
from agentgym.rollout.turns import Setting


@dataclass(frozen=True)
class Job:
    """What the workers play, and with whom."""

    source: EnvSource
    setting: Setting
    """Without client, progress and canary."""
    endpoints: tuple[Endpoint, ...]
    """The policy's."""
    is_balanced: bool = False
    """Whether they are replicas, which may come and go."""
    client: Any = None
    """The policy, where it is no endpoint."""


def ray_module() -> Any:
    """Ray.

    Raises:
        MissingExtraError: If it isn't installed.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError(
            'rollouts on a cluster need Ray: pip install "agentgym-envs[ray]"'
        ) from error
    return ray


def packed(source: EnvSource, setting: Setting, endpoints: Sequence[Endpoint]) -> bytes:
    """A job as bytes.

    Args:
        source: Makes the environments.
        setting: The driver's.
        endpoints: The policy's; without, it is the setting's client.

    Raises:
        ConfigError: If a part can't be sent, with what to give instead.
        MissingExtraError: If Ray isn't installed.
    """
    dumps = ray_module().cloudpickle.dumps
    if not connects_directly():
        raise ConfigError("recordings belong to one process; use backend='local' for them")
    client = setting.client
    is_balanced = isinstance(client, BalancedClient)
    if isinstance(client, BalancedClient):
        endpoints = [listed.endpoint for listed in client.roster]
        if any(map(is_rationed, endpoints)):
            raise ConfigError(
                "client: on a cluster a policy of several replicas has neither budget_usd nor rate;"
                " the workers ask the replicas directly"
            )
    if isinstance(client, ChatClient | SharedClient) and not endpoints:
        endpoints = (client.endpoint,)
    kept_here = dict.fromkeys(("client", "progress", "canary", "journal"))
    plain = setting.model_copy(update=kept_here)
    _try_to_pack(
        dumps,
        source,
        "the env",
        "give an env id, `module:id`, or a function; models among its parameters as Endpoint",
    )
    if not endpoints:
        _try_to_pack(
            dumps,
            client,
            f"client: a {type(client).__name__}",
            "give the policy's Endpoint, and each worker makes a client of its own",
        )
    sent_client = None if endpoints else client
    job = Job(source, plain, tuple(endpoints), is_balanced, sent_client)
    return bytes(dumps(job))


def _try_to_pack(dumps: Any, part: Any, what: str, instead: str) -> None:
    try:
        dumps(part)
    except Exception as error:  # whatever an object's __reduce__ raises
        why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"{what} can't be sent to the workers of a cluster ({why}); {instead}"
        ) from error


def unpacked(job: bytes) -> Job:
    """A job, in a worker.

    Raises:
        ConfigError: If code that it needs isn't there.
    """
    try:
        loaded = pickle.loads(job)
    except Exception as error:  # whatever importing the user's modules raises
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"a worker can't load the env or the policy: {why}; install their package on the "
            "nodes, or send it along with Cluster(runtime_env={'working_dir': '.'})"
        ) from error
    assert isinstance(loaded, Job)
    return loaded
