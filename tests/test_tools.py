"""Tools at work: any result, waiting and blocking functions, faults."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import threading
import weakref
from typing import Annotated

import pytest
from pydantic import BaseModel, Field

from agentgym.errors import ConfigError, EnvFault, MalformedCall, SimulatorError, ToolError
from agentgym.threads import Threads, abandoned, using_threads
from agentgym.tools import Tool, ToolBox, render_result


def search(query: str, limit: Annotated[int, Field(ge=1, le=50)] = 10) -> str:
    """Search the catalogue,
    all of it.

    More that the model needn't read.

    Args:
        query: Words to look for,
            in any order.
        limit (int): Most results.

    Returns:
        Text.
    """
    return f"{query}/{limit}"


def nothing() -> str:
    return "ran"


class Point(BaseModel):
    x: int
    y: float = 0.0


def run(tool, arguments=None, *, on_loop=True):
    return asyncio.run(tool.call(tool.read(arguments), on_loop=on_loop))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as is", "as is"),
        ({"a": 1, "é": [True, None]}, '{"a": 1, "é": [true, null]}'),
        (None, ""),
        (3.5, "3.5"),
        (b"caf\xc3\xa9", "café"),
        (b"\xff\x00", "base64:/wA="),
        (iter([1, 2]), "[1, 2]"),
        (Point(x=1), '{"x":1,"y":0.0}'),
        ("ok \ud83d end", "ok \ufffd end"),
        ({"k\ud83d": "\ud83c\udf78"}, '{"k\ufffd": "🍸"}'),
    ],
)
def test_any_result_becomes_text(value, text):
    """A19, A20."""
    assert render_result(value) == text
    render_result(value).encode()


@pytest.mark.parametrize("value", [object(), float("nan"), {"x": float("inf")}, {1, 2}])
def test_a_result_without_json_form_is_an_error_message(value):
    """A20."""
    with pytest.raises(ToolError, match="can't be shown"):
        render_result(value)


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("on_loop", [True, False])
def test_generators_are_consumed(inline, on_loop):
    """A20."""

    def count():
        yield from (1, 2)

    async def acount():
        for n in (1, 2):
            await asyncio.sleep(0)
            yield n

    assert run(Tool(count, inline=inline), on_loop=on_loop) == "[1, 2]"
    assert run(Tool(acount)) == "[1, 2]"
    assert Tool(acount).needs_loop


def test_blocking_tools_leave_the_loop_free():
    """E04: two blocking calls wait for each other, which on the loop's thread would never end."""
    barrier = threading.Barrier(2, timeout=30)

    def block() -> str:
        barrier.wait()
        return threading.current_thread().name

    async def both():
        tool = Tool(block)
        return await asyncio.gather(*(tool.call({}, on_loop=True) for _ in range(2)))

    assert all(name == "tool-block" for name in asyncio.run(both()))


def test_inline_tools_stay_on_the_loops_thread():
    def where() -> str:
        return str(threading.get_ident())

    assert run(Tool(where, inline=True)) == str(threading.get_ident())
    assert run(Tool(where)) != str(threading.get_ident())


def test_a_stuck_tool_times_out_without_waiting_for_it():
    """E05: the call returns while the tool still runs; its thread is counted until it is done."""
    release, started = threading.Event(), threading.Event()

    def stuck() -> str:
        started.set()
        release.wait(60)
        return "late"

    tool = Tool(stuck, timeout_s=0.01)
    with pytest.raises(ToolError, match=r"stuck timed out after 0\.01 s"):
        run(tool)
    assert started.is_set()
    assert abandoned() == 1
    release.set()
    for thread in threading.enumerate():
        if thread.name == "tool-stuck":
            thread.join(30)
    assert abandoned() == 0


def test_a_tool_that_finished_as_it_was_given_up_is_not_counted():
    """E05: the count would creep up and shut the tools in the end."""

    def quick() -> str:
        return "done"

    async def give_up_too_late():
        call = asyncio.ensure_future(Tool(quick).call({}, on_loop=True))
        await asyncio.sleep(0)
        while "tool-quick" in {thread.name for thread in threading.enumerate()}:
            os.sched_yield()  # until it is done, which the loop doesn't know yet
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(give_up_too_late())
    assert abandoned() == 0


def test_too_many_stuck_tools_are_a_clear_error():
    """E05."""
    release = threading.Event()

    def stuck() -> None:
        release.wait(60)

    async def many() -> None:
        tool = Tool(stuck, timeout_s=0.01)
        with using_threads(Threads(2)):
            for _ in range(2):
                with pytest.raises(ToolError, match="timed out"):
                    await tool.call({}, on_loop=True)
            with pytest.raises(EnvFault, match="2 blocking calls that were given up are still"):
                await tool.call({}, on_loop=True)
        release.set()

    asyncio.run(many())


def test_async_tools_time_out_and_are_cancelled():
    """E05."""
    seen = []

    async def wait() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return ""

    with pytest.raises(ToolError, match="timed out"):
        run(Tool(wait, timeout_s=0.01))
    assert seen == ["cancelled"]


@pytest.mark.parametrize("on_loop", [True, False])
def test_errors_keep_their_meaning(on_loop):
    class OwnSimulatorError(SimulatorError):
        pass

    def fail(kind: str) -> str:
        raise {
            "tool": ToolError("told"),
            "simulator": OwnSimulatorError("sim"),
            "crash": KeyError("k"),
            "stop": StopIteration(3),
        }[kind]

    tool = Tool(fail)
    for kind, expected in [
        ("tool", ToolError),
        ("simulator", OwnSimulatorError),
        ("crash", EnvFault),
        ("stop", EnvFault),
    ]:
        with pytest.raises(expected):
            run(tool, {"kind": kind}, on_loop=on_loop)


def test_a_tool_pickles_with_its_reader():
    tool = pickle.loads(pickle.dumps(Tool(search, timeout_s=3)))
    assert (tool.name, tool.timeout_s, tool.spec) == ("search", 3, Tool(search).spec)
    assert run(tool, {"query": "q"}) == "q/10"


def test_tools_made_of_closures_dont_keep_what_they_close_over():
    class Holder:
        pass

    def make():
        holder = Holder()

        def tell() -> str:
            return repr(holder)

        return Tool(tell), weakref.ref(holder)

    tool, kept = make()
    assert "Holder" in run(tool)
    del tool
    gc.collect()
    assert kept() is None


def test_changing_one_boxs_specs_changes_no_other():
    """The specs go out in `info["tools"]`, where a caller may rewrite a description."""
    one, other = ToolBox([search]), ToolBox([search])
    one.specs[0]["function"]["description"] = "changed"
    assert other.specs[0]["function"]["description"] != "changed"


def test_toolbox_finds_by_name_and_refuses_doubles():
    box = ToolBox([search, Tool(nothing)])
    assert [t.name for t in box] == ["search", "nothing"]
    assert len(box) == 2
    assert box.find("nothing").name == "nothing"
    with pytest.raises(MalformedCall, match="no tool 'none'. Tools: search, nothing"):
        box.find("none")
    with pytest.raises(MalformedCall, match=r"no tool \['search'\]"):
        box.find(["search"])
    with pytest.raises(ConfigError, match="two tools are called 'search'"):
        ToolBox([search, search])
