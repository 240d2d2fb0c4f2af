"""Joining a Ray cluster, and leaving it when nobody in this process needs it any more."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any, ClassVar

from agentgym.errors import ConfigError
from agentgym.rollout.cluster_config import Cluster
from agentgym.rollout.cluster_job import ray_module

_PROBE_S = 5.0
_TOKEN = (
    "set RAY_AUTH_MODE=token, with the token of the node where `ray start --head` ran in "
    "~/.ray/auth_token or RAY_AUTH_TOKEN (Ray asks for one where that file exists, and sends it by "
    "itself to 'auto' only, never to an address)"
)
_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}

_lock = threading.Lock()
_holders = 0
_is_ours = False


def join(cluster: Cluster) -> Any:
    """Connect this process to a cluster, unless it is; `leave` must follow. May block.

    A connection that somebody else made is used as it is and left alone.

    Returns:
        Ray.

    Raises:
        ConfigError: If there is no cluster, or the process is connected to another one.
        MissingExtraError: If Ray isn't installed.
    """
    global _holders, _is_ours
    ray = ray_module()
    with _lock:
        if ray.is_initialized():
            _check_is_same(ray, cluster.address)
        else:
            _connect(ray, cluster.address)
            _is_ours = True
        _holders += 1
    return ray


def leave() -> None:
    """Undo one `join`; may block."""
    global _holders, _is_ours
    with _lock:
        _holders -= 1
        if _holders == 0 and _is_ours:
            _is_ours = False
            if _Host.running is not None:
                _Host.running.end()
            else:
                ray_module().shutdown()


class _Host(threading.Thread):
    """Starts a cluster on this machine and stays for as long as it is to live.

    Linux ends the processes of a cluster together with the thread that has started them.
    """

    running: ClassVar[_Host | None] = None

    def __init__(self, ray: Any) -> None:
        super().__init__(name="ray-host", daemon=True)
        self._ray = ray
        self._is_up = threading.Event()
        self._is_over = threading.Event()
        self._error: BaseException | None = None

    @classmethod
    def start_one(cls, ray: Any) -> None:
        """Start a cluster and wait until it is up."""
        host = cls(ray)
        host.start()
        host._is_up.wait()
        if host._error is not None:
            raise ConfigError(f"Ray can't be started here: {host._error}") from host._error
        cls.running = host

    def end(self) -> None:
        """End the cluster."""
        _Host.running = None
        self._is_over.set()
        self.join()

    def run(self) -> None:
        """The thread's life."""
        try:
            self._ray.init(address="local", include_dashboard=False, **_QUIET)
        except BaseException as error:  # told by `start_one`
            self._error = error
            return
        finally:
            self._is_up.set()
        self._is_over.wait()
        self._ray.shutdown()


def _check_is_same(ray: Any, address: str | None) -> None:
    here = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", here):
        raise ConfigError(
            f"this process is connected to the Ray cluster at {here}, not to {address}; leave the "
            "address out, or call ray.shutdown() first"
        )


def _connect(ray: Any, address: str | None) -> None:
    if address is None:
        address = os.environ.get("RAY_ADDRESS") or None
    if address is None:
        try:
            ray.init(address="auto", **_QUIET)
        except ConnectionError:
            _Host.start_one(ray)
        return
    if address == "local":
        _Host.start_one(ray)
        return
    if address.startswith("ray://"):
        raise ConfigError(
            f"{address}: rollouts can't go through Ray's client; run the driver on a node of the "
            "cluster (`ray job submit -- python train.py`) and leave the address out"
        )
    if address != "auto":
        _probe(address)
    try:
        ray.init(address=address, **_QUIET)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        if _wants_token(ray, error):
            raise ConfigError(f"the Ray cluster at {address} wants a token: {_TOKEN}") from error
        why = " ".join(str(error).split())[:300]
        raise ConfigError(f"no Ray cluster at {address}: {why}") from error


def _wants_token(ray: Any, error: BaseException) -> bool:
    """Whether the cluster turned this process away; Ray says so in the text of the cause alone."""
    told = f"{error} {error.__cause__}"
    return isinstance(error, ray.exceptions.AuthenticationError) or "InvalidAuthToken" in told


def _probe(address: str) -> None:
    """See that somebody listens; Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"address must be host:port, 'auto' or 'local', got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"no Ray cluster at {address}: {error}; `ray start --head --port={port}` starts one"
        ) from error
