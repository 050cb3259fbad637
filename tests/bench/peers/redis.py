"""Redis over its unix socket: appendonly, appendfsync=always."""

from __future__ import annotations

from functools import partial

import redis
from tests.bench.peers.base import Call, Contender, WholeState

REDIS_PUSH, REDIS_SET = "Redis, list of messages", "Redis, whole state"


class RedisPush(Contender):
    """The message at the end of a list."""

    name = REDIS_PUSH

    def __init__(self, path: str) -> None:
        self.redis = redis.Redis(unix_socket_path=path)

    def fill(self, thread: str, messages: list[bytes]) -> None:
        if messages:
            self.redis.rpush(f"list:{thread}", *messages)

    def step(self, thread: str, message: bytes) -> Call:
        return partial(self.redis.rpush, f"list:{thread}", message)

    def read(self, thread: str) -> Call:
        return partial(self.redis.lrange, f"list:{thread}", 0, -1)

    def close(self) -> None:
        self.redis.close()


class RedisSet(WholeState):
    """A key for each state."""

    name = REDIS_SET

    def __init__(self, path: str) -> None:
        super().__init__()
        self.redis = redis.Redis(unix_socket_path=path)

    def put(self, thread: str, version: int, state: bytes) -> None:
        self.redis.set(f"state:{thread}:{version}", state)

    def read(self, thread: str) -> Call:
        return partial(self.redis.get, f"state:{thread}:{self.version[thread]}")

    def close(self) -> None:
        self.redis.close()
