"""A server's slots, queue and statistics, in simulated time and with numbers worked by hand."""

from __future__ import annotations

import pytest

from agentgym.testing.fleet.prefix import Prompt
from agentgym.testing.fleet.replica import Job, Replicas, ReplicaSpec
from agentgym.testing.fleet.simulated_time import LoopTimers, SimulatedLoop

SPEC = ReplicaSpec(slots=1, prefill_tokens_per_s=10, decode_tokens_per_s=10)


class Bench:
    """Servers in simulated time, and when each request was answered."""

    def __init__(self, *specs):
        self.loop = SimulatedLoop()
        self.timers = LoopTimers(self.loop)
        self.replicas = Replicas(specs, self.timers)
        self.done = {}

    def ask(self, name, *, at=0.0, index=0, prompt_tokens=10, completion_tokens=20):
        """Ask at a time; the job is put into the list that is returned."""
        prompt = Prompt([{"role": "user", "content": name.ljust(4 * (prompt_tokens - 4))}])
        answer = {"role": "assistant", "content": "x" * (4 * (completion_tokens - 4))}
        jobs = []

        def submit():
            jobs.append(Job(prompt, answer, lambda job: self.done.update({name: self.now()})))
            self.replicas.each[index].submit(jobs[0])

        if at:
            self.timers.call_later(at, submit)
        else:
            submit()
        return jobs

    def at(self, when, call, *args):
        self.timers.call_later(when, call, *args)

    def now(self):
        return self.timers.now()

    def run(self):
        with pytest.raises(RuntimeError, match="no timer is set"):
            self.loop.run_forever()  # until nothing is left to happen
        self.loop.close()
        return self.replicas.statistics()


def test_a_request_takes_its_fresh_prompt_and_its_answer():
    bench = Bench(SPEC)
    bench.ask("a", prompt_tokens=10, completion_tokens=20)  # 1 s + 2 s
    bench.ask("a", at=5.0, prompt_tokens=10, completion_tokens=20)  # cached: 2 s
    (statistics,) = bench.run().replicas
    assert bench.done["a"] == pytest.approx(7.0)
    assert statistics.busy_s == statistics.slot_s == pytest.approx(5.0)
    assert (statistics.prompt_tokens, statistics.cached_tokens) == (20, 10)
    assert statistics.possible_tokens == 10


def test_a_request_joins_as_soon_as_a_slot_is_free_and_in_order():
    bench = Bench(SPEC.model_copy(update={"slots": 2}))
    bench.ask("a", completion_tokens=20)  # until 3
    bench.ask("b", completion_tokens=50)  # until 6
    bench.ask("c", completion_tokens=20)  # 3 to 6
    bench.ask("d", completion_tokens=10)  # 6 to 8
    (statistics,) = bench.run().replicas
    assert bench.done == pytest.approx({"a": 3.0, "b": 6.0, "c": 6.0, "d": 8.0})
    assert statistics.waited_s == pytest.approx(3.0 + 6.0)
    assert statistics.most_waiting == 2
    assert statistics.slot_s == pytest.approx(3 + 6 + 3 + 2)
    assert statistics.busy_s == pytest.approx(8.0)


def test_a_request_given_up_frees_its_slot_at_once():
    bench = Bench(SPEC)
    given_up = bench.ask("a", completion_tokens=1000)
    bench.ask("b", completion_tokens=20)
    bench.at(4.0, lambda: bench.replicas.each[0].cancel(given_up[0]))
    (statistics,) = bench.run().replicas
    assert bench.done == pytest.approx({"b": 7.0})
    assert (statistics.aborted, statistics.completed) == (1, 1)
    assert statistics.wasted_s == pytest.approx(4.0)


def test_a_request_given_up_in_the_queue_is_never_worked_on():
    bench = Bench(SPEC)
    bench.ask("a")
    given_up = bench.ask("b")
    bench.at(1.0, lambda: bench.replicas.each[0].cancel(given_up[0]))
    bench.at(1.5, lambda: bench.replicas.each[0].cancel(given_up[0]))  # twice is once
    (statistics,) = bench.run().replicas
    assert set(bench.done) == {"a"}
    assert (statistics.aborted, statistics.wasted_s, statistics.waiting) == (1, 0.0, 0)


def test_a_prompt_given_up_before_it_is_computed_is_no_prefix():
    bench = Bench(SPEC)
    given_up = bench.ask("a", prompt_tokens=100)  # computed at 10
    bench.at(5.0, lambda: bench.replicas.each[0].cancel(given_up[0]))
    bench.ask("a", at=20.0, prompt_tokens=100, completion_tokens=10)
    bench.run()
    assert bench.done == pytest.approx({"a": 20.0 + 10.0 + 1.0})


def test_idle_counts_only_while_another_server_has_a_queue():
    bench = Bench(SPEC, SPEC.model_copy(update={"slots": 3}))
    bench.ask("a", completion_tokens=20)  # 0 to 3 at the first
    bench.ask("b", completion_tokens=20)  # waits until 3, runs to 6
    bench.ask("c", index=1, at=1.0, completion_tokens=10)  # 1 to 3 at the second
    first, second = bench.run().replicas
    assert second.idle_while_queued_s == pytest.approx(1.0)  # 0 to 1
    assert second.spare_slot_s == pytest.approx(3 * 1.0 + 2 * 2.0)
    assert (first.idle_while_queued_s, first.spare_slot_s) == (0.0, 0.0)


def test_a_dead_server_loses_everything_and_is_not_idle():
    bench = Bench(SPEC, SPEC)
    bench.ask("a")
    bench.ask("b")
    bench.at(1.5, lambda: bench.replicas.each[0].die())
    bench.ask("c", index=1, at=2.0, completion_tokens=50)
    bench.ask("d", index=1, at=2.1)
    bench.at(5.0, lambda: bench.replicas.each[0].resume())
    first, second = bench.run().replicas
    assert set(bench.done) == {"c", "d"}
    assert (first.aborted, first.waiting, first.running) == (2, 0, 0)
    assert first.idle_while_queued_s == pytest.approx(3.0)  # from 5 to 8, when d gets its slot
    assert second.completed == 2


def test_a_paused_server_takes_nothing_out_of_its_queue():
    bench = Bench(SPEC)
    bench.at(0.0, lambda: bench.replicas.each[0].pause())
    bench.ask("a", at=1.0)
    bench.at(5.0, lambda: bench.replicas.each[0].resume())
    bench.run()
    assert bench.done == pytest.approx({"a": 8.0})


def test_statistics_can_begin_anew():
    bench = Bench(SPEC)
    bench.ask("a")
    bench.at(2.0, lambda: bench.replicas.forget_counts())
    statistics = bench.run()
    assert statistics.elapsed_s == pytest.approx(1.0)
    assert statistics.utilisation == pytest.approx(1.0)
    assert (statistics.replicas[0].requests, statistics.replicas[0].completed) == (0, 1)


def test_a_fleet_that_could_cache_nothing_missed_nothing():
    assert Bench(SPEC).run().hit_share == 1.0
    assert Bench(SPEC).run().utilisation == 0.0
