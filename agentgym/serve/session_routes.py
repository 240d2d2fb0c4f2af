"""Single environments over HTTP: create, reset, step, close, in any language.

The routes say nothing that the session doesn't; they turn requests into calls and records into
JSON. `session_router` brings the MCP endpoint and the reaper with it, so that a service includes
one router and is done.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Body, Depends, Response
from starlette.routing import Route

from agentgym.remote.schema import PREFIX, FaultBody
from agentgym.remote.session_schema import (
    Alive,
    CreateSession,
    CutEpisode,
    EpisodeStart,
    ResetEpisode,
    SessionList,
    SessionView,
    TakeTurn,
    TurnResult,
)
from agentgym.serve.access import Caller, caller_of
from agentgym.serve.faults import ServiceFault, refused
from agentgym.serve.mcp_face import McpFace
from agentgym.serve.sessions import Sessions
from agentgym.trace import Trace
from agentgym.types import Record, nests_too_deep

Asking: TypeAlias = Annotated[Caller, Depends(caller_of)]

_MAX_LEVELS = 110  # a call's arguments may have 100
_REFUSALS: dict[int | str, dict[str, Any]] = {
    404: {"model": FaultBody, "description": "No such session, or another caller's."},
    409: refused("Not now: busy, out of order, or over."),
    422: refused("The request makes no sense."),
    429: refused("Your quota is used up; see Retry-After."),
    503: refused("No room; see Retry-After."),
}


def session_router(sessions: Sessions) -> APIRouter:
    """The routes under `/v1/sessions`, MCP included.

    The router's lifespan runs the reaper and closes every session at the end; an app that includes
    the router has it run by its own. The app answers `ServiceFault`, and says who is asking in
    `request.state.caller`.

    Args:
        sessions: What is served.
    """
    face = McpFace(sessions)

    @contextlib.asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with sessions.running(), face.running():
            yield

    router = APIRouter(
        prefix=f"{PREFIX}/sessions", tags=["sessions"], lifespan=lifespan, responses=_REFUSALS
    )

    @router.post("", response_model=SessionView, status_code=HTTPStatus.CREATED)
    async def create_session(ask: CreateSession, caller: Asking) -> Response:
        """Make an environment. A repeated `key` gives the session that is there."""
        session = await sessions.create(ask, caller)
        if ask.reset is not None and session.episode is None:
            try:
                await session.reset(ask.reset)
            except ServiceFault:
                if session.episode is None:  # nobody has heard of it yet
                    await sessions.close(session.session_id, caller.name)
                raise
        return _json(session.view(), HTTPStatus.CREATED)

    @router.get("", response_model=SessionList)
    async def list_sessions(caller: Asking) -> Response:
        """Your sessions, the latest first."""
        views = tuple(session.view(brief=True) for session in sessions.of(caller.name))
        return _json(SessionList(sessions=views))

    @router.get("/{session_id}", response_model=SessionView)
    async def get_session(session_id: str, caller: Asking) -> Response:
        """A session: its tools, the conversation so far, the last result."""
        session = sessions.find(session_id, caller.name)
        session.touch()
        return _json(session.view())

    @router.post("/{session_id}/reset", response_model=EpisodeStart)
    async def reset_session(
        session_id: str, caller: Asking, ask: Annotated[ResetEpisode | None, Body()] = None
    ) -> Response:
        """Start an episode, as `env.reset(seed=…, options=…)`."""
        return _json(await sessions.find(session_id, caller.name).reset(ask or ResetEpisode()))

    @router.post("/{session_id}/step", response_model=TurnResult)
    async def step_session(session_id: str, ask: TakeTurn, caller: Asking) -> Response:
        """Take one turn, as `env.step(action)`; repeated, it is answered as before."""
        if nests_too_deep(ask.action, _MAX_LEVELS):
            raise ServiceFault(422, "bad_action", f"the action nests over {_MAX_LEVELS} levels")
        return _json(await sessions.find(session_id, caller.name).step(ask))

    @router.post("/{session_id}/truncate", response_model=TurnResult)
    async def truncate_session(session_id: str, ask: CutEpisode, caller: Asking) -> Response:
        """End the episode because of a limit of yours; it is still judged."""
        return _json(await sessions.find(session_id, caller.name).truncate(ask))

    @router.get("/{session_id}/trace", response_model=Trace)
    async def get_session_trace(session_id: str, caller: Asking) -> Response:
        """The full record of the episode, once it is over."""
        session = sessions.find(session_id, caller.name)
        session.touch()
        found = session.trace()
        return Response(found.to_json_line(), media_type="application/json")

    @router.post("/{session_id}/keepalive", response_model=Alive)
    async def keep_session(session_id: str, caller: Asking) -> Response:
        """Say that you still need the session."""
        return _json(Alive(expires_in_s=sessions.find(session_id, caller.name).touch()))

    @router.delete("/{session_id}", status_code=HTTPStatus.NO_CONTENT)
    async def close_session(session_id: str, caller: Asking) -> None:
        """Close the environment and free its slot."""
        await sessions.close(session_id, caller.name)

    router.routes.append(
        Route(
            f"{PREFIX}/sessions/{{session_id}}/mcp",
            endpoint=face,
            methods=["POST"],  # no stream of its own, and no MCP session to end
        )
    )
    return router


def _json(record: Record, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(record.model_dump_json(), status, media_type="application/json")
