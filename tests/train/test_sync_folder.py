"""Full weights through a folder: each server as one transaction, checked at every step."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from agentgym.client import Endpoint, SamplingParams
from agentgym.clients import BalancedClient
from agentgym.errors import ConfigError, TrainingError
from agentgym.train.sync import ClientListener, FolderSync, Weights, fleet
from agentgym.train.sync.checkpoint import write_weights
from agentgym.train.sync.claim import LOCK
from tests.support.vllm_admin import DIE, HANG, START, AdminServer

USER = [{"role": "user", "content": "the same prompt every time"}]


def weights(value: float = 1.0) -> Weights:
    model = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(model.weight, value)
    return Weights(model, lambda: ((name, p.data) for name, p in model.named_parameters()))


def folder_sync(tmp_path: Path, servers: list[AdminServer], **options) -> FolderSync:
    sync = FolderSync(tmp_path / "shared", retry_pause_s=0, **options)
    sync.check([server.endpoint for server in servers])
    return sync


def ask(client: BalancedClient, episode: str = "e") -> dict:
    """What one answer was computed with."""

    async def one() -> dict:
        completion = await client.complete(USER, (), SamplingParams(), session=episode)
        return json.loads(completion.message["content"]) | {"said": completion.weight_version}

    return asyncio.run(one())


class Log:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple] = []

    def holding(self, server: Endpoint) -> None:
        self.told.append(("holding", server.base_url))

    def synced(self, server: Endpoint, *, version: str, model: str | None) -> None:
        self.told.append(("synced", server.base_url, version, model))

    def lost(self, server: Endpoint, why: str) -> None:
        self.told.append(("lost", server.base_url, why))


# --- one server -----------------------------------------------------------------------------------


def test_a_sync_pauses_loads_resets_names_and_goes_on_in_this_order(tmp_path):
    with AdminServer() as server:
        sync = folder_sync(tmp_path, [server])
        client = BalancedClient([server.endpoint])
        assert ask(client)["of"] == [START] * 4
        report = sync.push(weights(), version="7")
    assert server.steps == ["pause wait", "load 7", "reset", "version 7", "resume"]
    assert report.servers == (server.root,)
    assert not report.lost
    assert report.bytes == 4 * (3 * 2 + 2)
    assert 0 < report.held_s <= report.seconds


def test_a_prompt_that_was_cached_is_computed_anew_under_the_new_weights(tmp_path):
    """G01."""
    with AdminServer() as server:
        sync = folder_sync(tmp_path, [server])
        client = BalancedClient([server.endpoint])
        sync.listeners.append(ClientListener(client))
        ask(client)
        assert ask(client)["prefix"] == START  # from the cache
        sync.push(weights(), version="7")
        assert ask(client) == {"prefix": "7", "of": ["7"] * 4, "said": "7"}


def test_requests_in_flight_end_under_the_old_weights_before_the_new_ones_are_loaded(tmp_path):
    with AdminServer() as server:
        server.until_paused = True
        sync = folder_sync(tmp_path, [server])
        client = BalancedClient([server.endpoint])
        answers: list[dict] = []
        thread = threading.Thread(target=lambda: answers.append(ask(client)))
        thread.start()
        _until(server, begun_under=START)
        sync.push(weights(), version="7")
        thread.join()
    assert answers[0]["of"] == [START] * 4
    assert server.log == [
        *("pause wait", f"answer {START}", "load 7", "reset", "version 7", "resume"),
    ]


def test_through_lets_requests_go_on_under_the_new_weights_with_their_prompt_computed_anew(
    tmp_path,
):
    with AdminServer() as server:
        server.until_paused = True
        sync = folder_sync(tmp_path, [server], in_flight="through")
        client = BalancedClient([server.endpoint])
        client.set_weight_version(None, "6")
        sync.listeners.append(ClientListener(client))
        answers: list[dict] = []
        thread = threading.Thread(target=lambda: answers.append(ask(client)))
        thread.start()
        _until(server, begun_under=START)
        sync.push(weights(), version="7")
        thread.join()
    assert answers[0]["prefix"] == answers[0]["of"][-1] == "7"
    assert answers[0]["of"][0] == START
    assert answers[0]["said"] == "6->7"
    assert server.steps[0] == "pause keep"


@pytest.mark.parametrize("refusals", [1, 3])
def test_a_reset_that_did_not_happen_is_asked_for_again(tmp_path, refusals):
    with AdminServer() as server:
        sync = folder_sync(tmp_path, [server])
        server.faults["/reset_prefix_cache"] = [(200, {"success": False})] * refusals
        sync.push(weights(), version="7")
    assert server.steps[-3:] == ["reset", "version 7", "resume"]


@pytest.mark.parametrize("body", [{"success": False}, {}, None, [], "ok"])
def test_a_reset_that_never_happens_ends_the_run_if_there_is_no_other_server(
    tmp_path, body, monkeypatch
):
    """G02."""
    monkeypatch.setattr(fleet, "_RESET_S", 0.0)
    with AdminServer() as server:
        sync = folder_sync(tmp_path, [server])
        server.faults["/reset_prefix_cache"] = [(200, body)] * 1000
        with pytest.raises(TrainingError, match="could not reset its prefix cache") as caught:
            sync.push(weights(), version="7")
        assert "\n" not in str(caught.value)
    assert server.paused  # so that nobody is answered with blocks of the old weights


@pytest.mark.parametrize("path", ["/v1/models", "/server_info", "/is_paused", "/weight_info"])
@pytest.mark.parametrize("body", [{}, [], None, "hello", {"data": [1], "vllm_config": [1]}])
def test_what_is_no_answer_of_a_vllm_server_is_one_line(tmp_path, path, body):
    with AdminServer() as server:
        server.faults[path] = [(200, body)] * 9
        sync = FolderSync(tmp_path / "shared", retry_pause_s=0)

        def whole() -> None:
            sync.check([server.endpoint])
            sync.push(weights(), version="7")

        with pytest.raises(TrainingError, match="vLLM") as caught:
            whole()
        sync.close()
    assert server.root in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("body", [{"results": []}, {"results": ["no"]}, {}, None])
def test_a_load_whose_answer_is_not_that_it_loaded_is_a_failed_one(tmp_path, body):
    with AdminServer() as server:
        sync = folder_sync(tmp_path, [server])
        server.faults["/collective_rpc"] = [(200, body)] * 2
        with pytest.raises(TrainingError, match="to reload_weights"):
            sync.push(weights(), version="7")


def test_a_failed_load_is_tried_once_more_from_the_start(tmp_path):
    with AdminServer() as server:
        sync = folder_sync(tmp_path, [server])
        sync.listeners.append(log := Log())
        server.faults["/collective_rpc"] = [(500, {"error": {"message": "worker failed"}})]
        assert sync.push(weights(), version="7").servers == (server.root,)
    assert server.steps == ["pause wait", "pause wait", "load 7", "reset", "version 7", "resume"]
    assert [told[0] for told in log.told] == ["holding", "holding", "synced"]


def test_a_server_that_does_not_see_the_folder_is_told_by_its_path(tmp_path):
    with AdminServer() as server:
        sync = folder_sync(tmp_path, [server], server_folder="/mnt/elsewhere")
        with pytest.raises(TrainingError, match=r"does the server see the folder /mnt/elsewhere/7"):
            sync.push(weights(), version="7")
    assert server.paused  # held: vLLM dies if it has to generate now
    assert not server.crashed


def test_a_pause_that_is_not_one_loads_nothing(tmp_path):
    with AdminServer() as server:
        sync = folder_sync(tmp_path, [server])
        server.faults["/pause"] = [(200, {"status": "paused"})] * 2
        with pytest.raises(TrainingError, match="says it is paused and is not"):
            sync.push(weights(), version="7")
    assert "load 7" not in server.steps


def test_a_server_that_never_answers_is_given_up(tmp_path):
    with AdminServer() as server:
        sync = folder_sync(tmp_path, [server], load_s=0.05)
        server.faults["/collective_rpc"] = [HANG, HANG]
        with pytest.raises(TrainingError, match=r"no answer in 0\.05 s"):
            sync.push(weights(), version="7")


# --- several --------------------------------------------------------------------------------------


def test_a_server_that_dies_is_left_out_and_comes_back_with_the_next_sync(tmp_path):
    with AdminServer() as good, AdminServer() as bad:
        sync = folder_sync(tmp_path, [good, bad])
        client = BalancedClient([good.endpoint, bad.endpoint])
        sync.listeners += [ClientListener(client), log := Log()]
        bad.faults["/collective_rpc"] = [DIE]
        report = sync.push(weights(), version="7")
        assert report.servers == (good.root,)
        assert "no connection" in report.lost[bad.root]
        assert [told[0] for told in log.told if bad.root in told[1]] == [
            *("holding", "holding", "lost")
        ]
        assert {ask(client, f"e{i}")["of"][-1] for i in range(8)} == {"7"}
        assert sync.stale() == report.lost

        bad.restart()
        assert bad.weights == START
        assert {ask(client, f"f{i}")["of"][-1] for i in range(8)} == {"7"}  # it is not asked
        assert sync.push(weights(), version="8").servers == (good.root, bad.root)
        answers = [ask(client, f"g{i}") for i in range(16)]
        assert {(a["of"][-1], a["said"]) for a in answers} == {("8", "8")}
        assert {replica.answered > 0 for replica in client.status()} == {True}
        assert not sync.stale()


def test_a_server_that_came_back_with_its_first_weights_is_stale(tmp_path):
    with AdminServer() as server, AdminServer() as other:
        sync = folder_sync(tmp_path, [server, other])
        assert not sync.stale()  # nothing was pushed yet
        sync.push(weights(), version="7")
        server.restart()
        assert list(sync.stale()) == [server.root]
        assert "was started anew" in sync.stale()[server.root]
        server.dead = True
        assert "no connection" in sync.stale()[server.root]


def test_calls_of_a_server_that_dies_with_them_go_to_the_others(tmp_path):
    with AdminServer() as good, AdminServer() as bad:
        sync = folder_sync(tmp_path, [good, bad])
        client = BalancedClient([bad.endpoint])
        bad.until_paused = True
        sync.listeners.append(ClientListener(client))
        answers: list[dict] = []
        thread = threading.Thread(target=lambda: answers.append(ask(client)))
        thread.start()
        _until(bad, begun_under=START)
        client.add(good.endpoint)
        bad.faults["/pause"] = [DIE]
        sync.push(weights(), version="7")
        thread.join()
    assert answers[0]["of"] == ["7"] * 4


def test_no_server_left_ends_the_run_with_one_line_about_each(tmp_path):
    with AdminServer() as one, AdminServer() as two:
        sync = folder_sync(tmp_path, [one, two])
        one.faults["/pause"] = [DIE]
        two.faults["/update_weight_version"] = [(500, "oh")] * 2
        with pytest.raises(TrainingError, match="no server took weights 7") as caught:
            sync.push(weights(), version="7")
    assert one.root in str(caught.value)
    assert f"{two.root}/update_weight_version: HTTP 500: oh" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("in_flight", "episodes"),
    [
        *(("pause", 200), ("through", 200)),
        pytest.param("pause", 2000, marks=pytest.mark.e2e),
    ],
)
def test_many_requests_in_flight_lose_none_over_several_syncs(tmp_path, in_flight, episodes):
    turns = 3
    with AdminServer() as one, AdminServer() as two:
        sync = folder_sync(tmp_path, [one, two], in_flight=in_flight)
        client = BalancedClient([one.endpoint, two.endpoint])
        sync.listeners.append(ClientListener(client))
        sync.push(weights(), version="0")
        for server in (one, two):
            server.until_paused = True

        async def episode(number: int) -> list[dict]:
            found = []
            for _ in range(turns):
                completion = await client.complete(USER, (), SamplingParams(), session=str(number))
                answer = json.loads(completion.message["content"])
                found.append(answer | {"said": completion.weight_version})
            return found

        async def play() -> list[list[dict]]:
            async with asyncio.timeout(100):
                return await asyncio.gather(*map(episode, range(episodes)))

        played: list[list[dict]] = []
        thread = threading.Thread(target=lambda: played.extend(asyncio.run(play())))
        thread.start()
        for version in (1, 2):
            # Calls may leave a server that is held for the other one, so both needn't have some.
            _until(one, two, begun_under=str(version - 1))
            sync.push(weights(version), version=str(version))
        for server in (one, two):
            server.let_go()
        thread.join()
    answers = [answer for episode in played for answer in episode]
    assert len(answers) == episodes * turns
    assert {version for answer in answers for version in answer["of"]} == {"0", "1", "2"}
    assert [one.crashed, two.crashed] == [False, False]
    for answer in answers:
        of, said = answer["of"], answer["said"]
        assert answer["prefix"] == of[-1]
        # What a client says is true, or says that it may have changed meanwhile.
        first, _, last = said.partition("->")
        assert int(first) <= int(of[0]) <= int(of[-1]) <= int(last or first)
        if in_flight == "pause":
            assert len(set(of)) == 1


# --- what can be known before ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dev_mode": False}, "start it with VLLM_SERVER_DEV_MODE=1"),
        ({"name": "llama"}, "it serves llama, not 'policy'"),
        ({"key": "k"}, "put the server's key in OPENAI_API_KEY"),
        ({"model_config": {"logprobs_mode": "raw_logprobs"}}, "--logprobs-mode processed_logprobs"),
        ({"model_config": {"quantization": "fp8"}}, "without --quantization"),
        ({"scheduler_config": {"enable_chunked_prefill": True}}, "--no-enable-chunked-prefill"),
    ],
)
def test_a_server_that_does_not_fit_is_refused_with_the_remedy(tmp_path, options, said):
    with AdminServer(**options) as server:
        endpoint = server.endpoint.model_copy(update={"model": "policy"})
        with pytest.raises(TrainingError, match=re.escape(said)) as caught:
            FolderSync(tmp_path / "shared").check([endpoint])
    assert server.root in str(caught.value)
    assert "\n" not in str(caught.value)


def test_replicas_in_different_precisions_are_refused(tmp_path):
    with (
        AdminServer() as one,
        AdminServer(model_config={"dtype": "torch.bfloat16"}) as two,
        pytest.raises(TrainingError, match="differ in --dtype"),
    ):
        folder_sync(tmp_path, [one, two])


def test_everything_that_is_wrong_is_said_at_once(tmp_path):
    with AdminServer(dev_mode=False) as one, AdminServer("llama") as two:
        endpoints = [one.endpoint, two.endpoint.model_copy(update={"model": "policy"})]
        with pytest.raises(TrainingError, match=r"DEV_MODE=1.*serves llama"):
            FolderSync(tmp_path).check(endpoints)


def test_a_server_that_is_down_is_refused(tmp_path):
    endpoint = Endpoint(base_url="http://127.0.0.1:9/v1", model="policy")
    with pytest.raises(TrainingError, match="no connection .* is it running"):
        FolderSync(tmp_path).check([endpoint])


def test_no_server_and_one_named_twice_are_refused(tmp_path):
    sync = FolderSync(tmp_path)
    with pytest.raises(TrainingError, match="need a server"):
        sync.check([])
    endpoint = Endpoint(base_url="http://127.0.0.1:9/v1", model="policy")
    with pytest.raises(TrainingError, match="named twice"):
        sync.check([endpoint, endpoint])
    other = endpoint.model_copy(update={"model": "a", "base_url": "http://127.0.0.1:8/v1"})
    with pytest.raises(TrainingError, match="serve one model, got a, policy"):
        sync.check([endpoint, other])


def test_a_folder_that_can_not_be_written_to_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with AdminServer() as server, pytest.raises(TrainingError, match="can't be written to"):
        FolderSync(tmp_path / "file" / "shared").check([server.endpoint])


def test_a_key_goes_along(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with AdminServer(key="k") as server:
        folder_sync(tmp_path, [server])


def test_credentials_in_the_url_beside_a_key_are_one_line_without_them(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with AdminServer(key="k") as server:
        url = server.endpoint.base_url.replace("http://", "http://user:pa55@")
        endpoint = server.endpoint.model_copy(update={"base_url": url})
        with pytest.raises(TrainingError, match="can't be asked: Cannot combine") as caught:
            FolderSync(tmp_path / "shared").check([endpoint])
    assert "pa55" not in str(caught.value)


def test_server_that_moved_is_named_rather_than_followed(tmp_path):
    with AdminServer() as server:
        server.faults["/v1/models"] = [(301, {})]
        with pytest.raises(TrainingError, match="HTTP 301, it is somewhere else"):
            folder_sync(tmp_path, [server])


def test_quantized_weights_are_refused(tmp_path):
    with AdminServer() as server:
        sync = folder_sync(tmp_path, [server])
        quantized = weights()
        quantized.model.is_loaded_in_4bit = True
        with pytest.raises(TrainingError, match='sync="lora"'):
            sync.push(quantized, version="7")
    assert not server.steps


def test_a_precision_that_is_none_is_refused(tmp_path):
    with AdminServer() as server, pytest.raises(ConfigError, match="got 'half-baked'"):
        folder_sync(tmp_path, [server], dtype="half-baked")


# --- what is left behind --------------------------------------------------------------------------


def test_old_versions_are_deleted_and_close_leaves_nothing(tmp_path):
    shared = tmp_path / "shared"
    with AdminServer() as server:
        sync = folder_sync(tmp_path, [server])
        (shared / "mine").mkdir()
        sync.push(weights(), version="7")
        sync.push(weights(), version="8")
        assert sorted(path.name for path in shared.iterdir()) == [LOCK, "8", "mine"]
        sync.close()
        assert [path.name for path in shared.iterdir()] == ["mine"]
        assert server.paused is None


def test_versions_of_a_run_that_crashed_are_deleted_at_the_next_start(tmp_path):
    with AdminServer() as server:
        folder_sync(tmp_path, [server]).push(weights(), version="7")
        sync = folder_sync(tmp_path, [server])
        assert [path.name for path in (tmp_path / "shared").iterdir()] == [LOCK]
        sync.push(weights(), version="8")  # over the other's weights, as they were at the start
        sync.close()
    assert not list((tmp_path / "shared").iterdir())


# --- two runs -------------------------------------------------------------------------------------


def test_folder_of_a_run_that_goes_on_is_refused_and_left_alone(tmp_path):
    shared = tmp_path / "shared"
    program = (
        "import sys; from pathlib import Path; from agentgym.train.sync.claim import FolderClaim\n"
        "FolderClaim(Path(sys.argv[1])).take(); print('taken', flush=True); sys.stdin.read()"
    )
    shared.mkdir()
    with AdminServer() as server:
        other = subprocess.Popen(
            [sys.executable, "-c", program, str(shared)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"taken\n"
            write_weights(shared, "theirs", weights().tensors())
            sync = FolderSync(shared)
            with pytest.raises(TrainingError, match=f"process {other.pid} on .* goes on") as caught:
                sync.check([server.endpoint])
            sync.close()
            assert (shared / "theirs").exists()
            other.kill()
        sync.check([server.endpoint])  # its lock died with it
        assert not (shared / "theirs").exists()
        sync.close()
    assert "\n" not in str(caught.value)


def test_run_whose_folder_was_taken_over_writes_and_deletes_nothing_more(tmp_path):
    with AdminServer() as server:
        first = folder_sync(tmp_path, [server])
        second = folder_sync(tmp_path, [server])
        second.push(weights(), version="7")
        with pytest.raises(TrainingError, match="taken over"):
            first.push(weights(), version="8")
        first.close()
        assert (tmp_path / "shared" / "7").exists()
        second.close()


def test_server_to_which_another_run_brought_weights_is_left_to_it(tmp_path):
    with AdminServer() as server, AdminServer() as other:
        mine = FolderSync(tmp_path / "mine", retry_pause_s=0)
        mine.check([server.endpoint, other.endpoint])
        mine.push(weights(), version="mine-1")
        theirs = FolderSync(tmp_path / "theirs", retry_pause_s=0)
        theirs.check([server.endpoint])
        theirs.push(weights(), version="theirs-1")
        assert "another run" in mine.stale()[server.root]
        seen = len(server.log)
        report = mine.push(weights(), version="mine-2")
        assert report.servers == (other.root,)
        assert "'theirs-1', which another run brought" in report.lost[server.root]
        assert server.log[seen:] == []  # not even paused
        assert server.weights == "theirs-1"
        assert not theirs.stale()
        theirs.push(weights(), version="theirs-2")
        mine.close()
        theirs.close()


@pytest.mark.parametrize("fault", ["disk", "name"])
def test_a_push_that_fails_still_gathers_all_weights_because_other_processes_do(tmp_path, fault):
    with AdminServer() as server:
        sync = folder_sync(tmp_path, [server])
        gathered = []

        def tensors():
            for name in ("a", "b", "c"):
                gathered.append(name)
                yield ("a" if fault == "disk" else name), torch.zeros(2)

        with pytest.raises(TrainingError):
            sync.push(Weights(None, tensors), version="no/name" if fault == "name" else "7")
        assert gathered == ["a", "b", "c"]
        sync.close()


def test_ctrl_c_leaves_no_server_in_the_middle_of_a_sync(tmp_path):
    with AdminServer() as server:
        server.until_paused = True
        sync = folder_sync(tmp_path, [server])

        class CtrlC:
            def holding(self, server: Endpoint) -> None:
                os.kill(os.getpid(), signal.SIGINT)

            def synced(self, server: Endpoint, *, version: str, model: str | None) -> None: ...

            def lost(self, server: Endpoint, why: str) -> None: ...

        sync.listeners.append(CtrlC())
        with pytest.raises(KeyboardInterrupt):
            sync.push(weights(), version="7")
        sync.close()
    assert server.steps == ["pause wait", "load 7", "reset", "version 7", "resume"]


def _until(*servers: AdminServer, begun_under: str) -> None:
    """Wait until a request has begun under some weights, at any of the servers."""
    deadline, pause = time.monotonic() + 60, threading.Event()
    while not any(begun_under in server.begun for server in servers):
        assert time.monotonic() < deadline
        pause.wait(0.001)
