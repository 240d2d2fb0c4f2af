"""Pools of policy servers over HTTP: add, remove, pause, resume, say which weights they have."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from fastapi import APIRouter, Depends, Path, Query

from agentgym.remote.schema import (
    MAX_NAME,
    PREFIX,
    AddedEndpoints,
    EndpointChange,
    PoolList,
    PoolStatus,
)
from agentgym.serve.access import Caller, caller_of
from agentgym.serve.job_routes import REFUSALS
from agentgym.serve.pools import Pools

Asking: TypeAlias = Annotated[Caller, Depends(caller_of)]
PoolName: TypeAlias = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=MAX_NAME,
        description="The pool's name; yours to choose.",
    ),
]


def policy_router(pools: Pools) -> APIRouter:
    """The routes under `/v1/policies`.

    Args:
        pools: What is served.
    """
    router = APIRouter(prefix=f"{PREFIX}/policies", tags=["policies"], responses=REFUSALS)

    @router.get("")
    async def list_pools(caller: Asking) -> PoolList:
        """List your pools."""
        return PoolList(pools=tuple(pool.status() for pool in pools.of(caller.name)))

    @router.get("/{pool}")
    async def status(pool: PoolName, caller: Asking) -> PoolStatus:
        """Tell how a pool's servers are doing."""
        return pools.named(caller.name, pool).status()

    @router.post("/{pool}/endpoints")
    async def add(pool: PoolName, added: AddedEndpoints, caller: Asking) -> PoolStatus:
        """Add servers to a pool, also while jobs play with it; makes the pool if there is none."""
        return (await pools.add(caller, pool, added.endpoints)).status()

    @router.patch("/{pool}/endpoints")
    async def change(pool: PoolName, change: EndpointChange, caller: Asking) -> PoolStatus:
        """Pause or resume servers, or say which weights they have now."""
        return (await pools.change(caller.name, pool, change)).status()

    @router.delete("/{pool}/endpoints")
    async def remove(
        pool: PoolName,
        caller: Asking,
        base_url: Annotated[str, Query(description="Which server.")],
        drain: Annotated[
            bool, Query(description="Whether its episodes may finish there; or else elsewhere.")
        ] = True,
    ) -> PoolStatus:
        """Take a server out of a pool, also while jobs play with it."""
        return await pools.remove(caller.name, pool, base_url, drain=drain)

    @router.delete("/{pool}")
    async def delete(pool: PoolName, caller: Asking) -> PoolStatus:
        """Delete a pool that no job plays with."""
        return await pools.remove(caller.name, pool, None, drain=False)

    return router
