"""The floor: a gRPC server in Python that answers what it got, on a unix socket, in a process of its own."""

from __future__ import annotations

import asyncio
import sys

import grpc.aio

METHOD = "/bench.Echo/Echo"


async def serve(target: str) -> None:
    """Answers until it is killed."""

    async def echo(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return request

    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)])
    handler = grpc.method_handlers_generic_handler("bench.Echo", {"Echo": grpc.unary_unary_rpc_method_handler(echo)})
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(target)
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
