"""A workflow of the Agent Framework that asks two things at once."""

from typing import Any

from agent_framework import Executor, Workflow, WorkflowBuilder, WorkflowContext, handler, response_handler


class Asker(Executor):
    """Asks, and gives each answer out."""

    def __init__(self) -> None:
        super().__init__(id="asker")

    @handler
    async def ask(self, _: str, ctx: WorkflowContext[str, str]) -> None:
        """Asks both."""
        await ctx.request_info("Pay?", bool)
        await ctx.request_info("Seat?", str)

    @response_handler
    async def paid(self, request: str, answer: bool, ctx: WorkflowContext[str, str]) -> None:
        """The answer to the first one."""
        await ctx.yield_output(f"{request} {answer}")

    @response_handler
    async def seated(self, request: str, answer: str, ctx: WorkflowContext[str, str]) -> None:
        """The answer to the second one."""
        await ctx.yield_output(f"{request} {answer}")


def build(storage: Any) -> Workflow:
    """The workflow."""
    return WorkflowBuilder(name="trip", start_executor=Asker(), checkpoint_storage=storage).build()
