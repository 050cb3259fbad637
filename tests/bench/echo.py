"""The floor: a gRPC server in Python on a unix socket, in a process of its own, that answers what it got, or as many
bytes as it is asked for."""

from __future__ import annotations

import asyncio
import sys
from functools import cache

import grpc.aio

METHOD = "/bench.Echo/Echo"
GIVE_METHOD = "/bench.Echo/Give"
"""The request is a decimal number; the answer has so many bytes. What a read is at least: little there, much back."""


@cache
def many_bytes(count: int) -> bytes:
    """The same bytes again and again, so that making them costs nothing."""
    return b"x" * count


async def serve(target: str) -> None:
    """Answers until it is killed."""

    async def echo(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return request

    async def give(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return many_bytes(int(request))

    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)])
    methods = {"Echo": grpc.unary_unary_rpc_method_handler(echo), "Give": grpc.unary_unary_rpc_method_handler(give)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", methods),))
    server.add_insecure_port(target)
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
