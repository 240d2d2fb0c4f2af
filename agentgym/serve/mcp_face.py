"""The MCP endpoint of a session: any agent framework plays an episode by calling its tools.

One stateless MCP server answers for all sessions; which one a request means stands in its path, so
a client that hangs up leaves nothing behind but the session, and that has a lease. Calls are taken
one at a time, in the order in which they come, whatever the client sends in parallel.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListToolsResult,
    Prompt,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
)
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from agentgym import __version__
from agentgym.serve import mcp_tools
from agentgym.serve.access import caller_of
from agentgym.serve.faults import ServiceFault
from agentgym.serve.session_state import Session
from agentgym.serve.sessions import Sessions
from agentgym.types import Message

_SESSION = "agentgym.session"
_INSTRUCTIONS = (
    "You are in an episode of a task. The prompt 'task' (also the resource episode://task) says "
    "what to do; the tools act in its world. Every call is a turn. When a result says that the "
    "episode is over, stop."
)


class McpFace:
    """An ASGI app that answers MCP requests under `/v1/sessions/{session_id}/mcp`.

    Args:
        sessions: Whose episodes are shown; the app has put the caller into `request.state`.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._manager: StreamableHTTPSessionManager | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer while the block runs."""
        manager = StreamableHTTPSessionManager(_server(), stateless=True)
        async with manager.run():
            self._manager = manager
            try:
                yield
            finally:
                self._manager = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            ServiceFault: 404 if it names no session of the caller's.
        """
        request = Request(scope)
        session = self._sessions.find(request.path_params["session_id"], caller_of(request).name)
        session.touch()
        if self._manager is None:
            raise ServiceFault(503, "draining", "the service is not running", retry_after_s=1)
        await self._manager.handle_request({**scope, _SESSION: session}, receive, send)


def _server() -> Server[Any]:
    return Server(
        "agentgym",
        version=__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=_list_tools,
        on_call_tool=_call_tool,
        on_list_prompts=_list_prompts,
        on_get_prompt=_get_prompt,
        on_list_resources=_list_resources,
        on_read_resource=_read_resource,
    )


def _session(context: Any) -> Session:
    session: Session = context.request.scope[_SESSION]
    return session


def _opening(context: Any) -> list[Message]:
    """The running episode's opening messages.

    Raises:
        MCPError: If there is no episode.
    """
    session = _session(context)
    if session.episode is None or session.env is None or session.env.agent is None:
        raise MCPError(
            code=INVALID_PARAMS,
            message="no episode of messages is running; POST /v1/sessions/{id}/reset starts one",
        )
    return list(session.episode.started.observation)


async def _list_tools(context: Any, _: Any) -> ListToolsResult:
    env = _session(context).env
    return ListToolsResult(tools=[] if env is None else mcp_tools.tools_of(env))


async def _call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
    session = _session(context)
    env, episode = session.env, session.episode
    action: Any = mcp_tools.as_action(
        params.name, params.arguments, turn=0 if episode is None else episode.turn
    )
    if env is not None and env.agent is not None and params.name == mcp_tools.text_tool(env):
        action = (params.arguments or {}).get("text")
        if not isinstance(action, str):
            return mcp_tools.refusal(f'{params.name} takes {{"text": "…"}}; call it again')
    try:
        return mcp_tools.as_result(await session.act(action))
    except ServiceFault as fault:
        return mcp_tools.refusal(fault.message)


async def _list_prompts(_: Any, __: Any) -> ListPromptsResult:
    prompt = Prompt(name=mcp_tools.TASK_PROMPT, description="What to do in this episode.")
    return ListPromptsResult(prompts=[prompt])


async def _get_prompt(context: Any, params: GetPromptRequestParams) -> GetPromptResult:
    if params.name != mcp_tools.TASK_PROMPT:
        text = f"no prompt {params.name!r:.60}; there is {mcp_tools.TASK_PROMPT!r}"
        raise MCPError(code=INVALID_PARAMS, message=text)
    return GetPromptResult(messages=mcp_tools.as_prompt(_opening(context)))


async def _list_resources(_: Any, __: Any) -> ListResourcesResult:
    resource = Resource(
        uri=mcp_tools.TASK_URI,
        name="task",
        description="What to do in this episode.",
        mime_type="text/plain",
    )
    return ListResourcesResult(resources=[resource])


async def _read_resource(context: Any, params: ReadResourceRequestParams) -> ReadResourceResult:
    if str(params.uri) != mcp_tools.TASK_URI:
        text = f"no resource {str(params.uri)!r:.100}; there is {mcp_tools.TASK_URI}"
        raise MCPError(code=INVALID_PARAMS, message=text)
    return ReadResourceResult(contents=[mcp_tools.as_resource(_opening(context))])
