"""The HTTP application: the gate, the routes, and the service behind them."""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

import agentgym
from agentgym.remote.schema import PREFIX, EnvEntry, EnvList, EnvParameter, ServiceStatus
from agentgym.serve.access import Caller, caller_of
from agentgym.serve.allowed import Allowed, about, constructor_parameters, path_parameters
from agentgym.serve.config import ServiceConfig
from agentgym.serve.faults import render_faults
from agentgym.serve.gate import Gate
from agentgym.serve.job_routes import REFUSALS, job_router
from agentgym.serve.policy_routes import policy_router
from agentgym.serve.request_page import request_page
from agentgym.serve.service import Service
from agentgym.serve.session_metrics import SessionMetrics
from agentgym.serve.session_routes import session_router

_ABOUT = """\
Rollouts of agentgym environments as a service. Submit a **job** (an environment, its tasks, the
policy's servers, how to sample) and collect its **traces**, each with its reward, by long poll or
as a stream. A cursor goes on after whatever interrupts: a cut connection, a restart of the service.

Every request but `/healthz` and `/readyz` needs the header `Authorization: Bearer TOKEN`, unless
the service runs on the loopback interface without tokens. A refusal is
`{"error": {"code": …, "message": …}}`.
"""
_HIDDEN_PARAMETERS = ("render_mode",)


def create_app(config: ServiceConfig) -> FastAPI:
    """The application of a service.

    Args:
        config: The service's.

    Returns:
        An ASGI application. `app.state.service` is the `Service`; it runs as long as the
        application's lifespan.

    Raises:
        StoreError: If the store can't be used.
    """
    service = Service(config)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="agentgym rollout service",
        version=agentgym.__version__,
        description=_ABOUT,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,  # Swagger UI, from elsewhere; see request_page
        redoc_url=None,
        lifespan=lifespan,
        generate_unique_id_function=_operation,
    )
    app.state.service = service
    render_faults(app)
    _include(app, job_router(service.jobs, config.keeping))
    _include(app, policy_router(service.pools))
    _include(app, session_router(service.sessions))
    _add_health(app, service)
    _add_about(app, service)
    _add_page(app)
    app.add_middleware(Gate, tokens=config.tokens, max_body_bytes=config.max_body_bytes)
    return app


def _operation(route: APIRoute) -> str:
    return f"{route.tags[0]}_{route.name}"


def _include(app: FastAPI, router: APIRouter) -> None:
    """Take a router's routes as they are, and its lifespan.

    `include_router` would make each of them anew, which is most of the time that an application
    takes to make.
    """
    for route in router.routes:
        if isinstance(route, APIRoute):
            route.unique_id = _operation(route)
        app.router.routes.append(route)
    app.include_router(APIRouter(lifespan=router.lifespan_context))


def _add_health(app: FastAPI, service: Service) -> None:
    registry = CollectorRegistry()
    registry.register(service.metrics)
    registry.register(SessionMetrics(service.sessions))

    @app.get("/healthz", tags=["health"])
    async def healthz() -> PlainTextResponse:
        """Tell that the process runs; needs no token."""
        return PlainTextResponse("ok\n")

    @app.get("/readyz", tags=["health"])
    async def readyz() -> PlainTextResponse:
        """Tell whether jobs are taken; needs no token."""
        if service.ready:
            return PlainTextResponse("ready\n")
        return PlainTextResponse("not ready\n", HTTPStatus.SERVICE_UNAVAILABLE)

    @app.get("/metrics", tags=["health"], responses=REFUSALS)
    async def metrics() -> Response:
        """Prometheus metrics of all engines and sessions."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


def _add_about(app: FastAPI, service: Service) -> None:
    allowed = service.config.allowed

    @app.get(f"{PREFIX}/status", tags=["about"], responses=REFUSALS)
    async def status(caller: Annotated[Caller, Depends(caller_of)]) -> ServiceStatus:
        """Tell how the service is doing, as far as it is yours."""
        return await service.status(caller)

    @app.get(f"{PREFIX}/envs", tags=["about"], responses=REFUSALS)
    def envs() -> EnvList:
        """List the environments and the parameters that a job may set."""
        return EnvList(envs=tuple(_entry(env, allowed) for env in allowed.envs))


def _add_page(app: FastAPI) -> None:
    @app.get(f"{PREFIX}/docs", tags=["about"], include_in_schema=False, response_class=HTMLResponse)
    def docs() -> str:
        return request_page(app.openapi(), schema_url="openapi.json")


def _entry(env_id: str, allowed: Allowed) -> EnvEntry:
    paths = path_parameters(env_id)
    parameters = [
        EnvParameter(
            name=parameter.name,
            type=str(parameter.annotation),
            default=_as_json(parameter.default),
        )
        for parameter in constructor_parameters(env_id)
        if parameter.name not in _HIDDEN_PARAMETERS
        and (parameter.name not in paths or parameter.name in allowed.parameters)
    ]
    return EnvEntry(env=env_id, about=about(env_id), parameters=tuple(parameters))


def _as_json(value: Any) -> Any:
    """A default as JSON can hold it; null where there is none."""
    if value is inspect.Parameter.empty:
        return None
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return str(value)
