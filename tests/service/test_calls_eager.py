"""The danger: a call that begins at once is another task than asyncio's to what it calls, and a wait never ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import pytest

from stateward_sidecar.service.local.eager import Eager

here: ContextVar[str] = ContextVar("here", default="outside")


async def ran(work: Callable[[list[Any]], Awaitable[None]]) -> tuple[list[Any], Eager, list[Any]]:
    """Runs a coroutine from a callback of the loop. Returns what it noted at its end, and what it had at once."""
    loop, noted, made = asyncio.get_running_loop(), list[Any](), list[Eager]()
    at_once = list[Any]()

    async def run() -> None:
        await work(noted)

    def start() -> None:
        made.append(Eager(run(), loop))
        at_once.extend(noted)

    loop.call_soon(start)
    for _ in range(200):
        await asyncio.sleep(0.01)
        if made and made[0].is_done:
            break
    return noted, made[0], at_once


async def test_it_begins_at_once_and_goes_on() -> None:
    """Until it waits for the first time; then with whatever it waits for."""

    async def work(noted: list[Any]) -> None:
        noted.append("begun")
        await asyncio.sleep(0)
        noted.append(await asyncio.get_running_loop().run_in_executor(None, lambda: "worker"))
        noted.append(await asyncio.shield(asyncio.ensure_future(asyncio.sleep(0.001, "task"))))
        noted.extend(await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0.001, 2)))

    noted, made, at_once = await ran(work)
    assert (noted, at_once, made.is_done) == (["begun", "worker", "task", 1, 2], ["begun"], True)


async def test_errors_come_where_it_waits() -> None:
    def fail() -> None:
        raise ValueError("the worker's")

    async def work(noted: list[Any]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, fail)
        except ValueError as error:
            noted.append(str(error))
        await asyncio.sleep(0)
        noted.append("goes on")

    assert (await ran(work))[0] == ["the worker's", "goes on"]


async def test_a_limit_ends_its_own_wait_only() -> None:
    """`asyncio.timeout` asks for the current task, and cancels it."""

    async def work(noted: list[Any]) -> None:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(10)
        except TimeoutError:
            noted.append("late")
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(10), 0.01)
        noted.append(await asyncio.sleep(0.001, "goes on"))

    assert (await ran(work))[0] == ["late", "goes on"]


@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_it_can_be_cancelled_wherever_it_waits(turns: int) -> None:
    loop, noted = asyncio.get_running_loop(), list[str]()

    async def work() -> None:
        try:
            await asyncio.sleep(0)
            await asyncio.sleep(10)
            noted.append("not cancelled")
        finally:
            noted.append("ended")

    made = list[Eager]()
    loop.call_soon(lambda: made.append(Eager(work(), loop)))
    await asyncio.sleep(0)
    for _ in range(turns):
        await asyncio.sleep(0)
    assert made[0].cancel()
    await asyncio.sleep(0.02)
    assert (noted, made[0].is_done, made[0].cancel()) == (["ended"], True, False)


async def test_its_variables_are_its_own() -> None:
    """What a call notes of itself, such as its request id, is not seen by the next one."""

    async def work(noted: list[Any]) -> None:
        here.set("inside")
        await asyncio.sleep(0.001)
        noted.append(here.get())

    assert (await ran(work))[0] == ["inside"]
    assert here.get() == "outside"


async def test_a_group_of_tasks_ends_with_the_first_that_fails() -> None:
    """`asyncio.TaskGroup` asks whether its task is done, and else cancels it."""

    async def fail() -> None:
        await asyncio.sleep(0.001)
        raise ValueError("a child")

    async def work(noted: list[Any]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
                await asyncio.sleep(10)
        except* ValueError:
            noted.append("failed")
        noted.append(await asyncio.sleep(0.001, "goes on"))

    noted, made, _ = await ran(work)
    assert (noted, made.done()) == (["failed", "goes on"], True)


async def test_a_cancellation_that_is_taken_back_does_not_come() -> None:
    """As a task of Python 3.13: not before the next wait, either."""

    async def work(noted: list[Any]) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        task.cancel()
        assert (task.uncancel(), task.uncancel()) == (1, 0)
        noted.append(await asyncio.sleep(0.001, "goes on"))

    assert (await ran(work))[0] == ["goes on"]
