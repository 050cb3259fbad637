"""etcd over gRPC on the loopback. Two of its messages are written here by hand, instead of a client library."""

from __future__ import annotations

from functools import partial

import grpc
from tests.bench.peers.base import Call, WholeState

ETCD = "etcd, whole state"
PUT, RANGE = "/etcdserverpb.KV/Put", "/etcdserverpb.KV/Range"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class Etcd(WholeState):
    """A PUT; etcd keeps the older revisions of a key. It refuses requests above 1.5 MiB."""

    name = ETCD

    def __init__(self, target: str) -> None:
        super().__init__()
        self.channel = grpc.insecure_channel(target, options=OPTIONS)
        self.do_put = self.channel.unary_unary(PUT)
        self.do_range = self.channel.unary_unary(RANGE)

    def put(self, thread: str, version: int, state: bytes) -> None:
        self.do_put(put_request(thread, state))

    def read(self, thread: str) -> Call:
        return partial(self.do_range, _field(1, thread.encode()))

    def close(self) -> None:
        self.channel.close()


def put_request(key: str, value: bytes) -> bytes:
    """etcdserverpb.PutRequest: key = 1, value = 2. RangeRequest has its key at 1 as well."""
    return _field(1, key.encode()) + _field(2, value)


def _field(number: int, data: bytes) -> bytes:
    """A field of bytes as protobuf writes it: tag, length as varint, data."""
    length, left = bytearray(), len(data)
    while left >= 0x80:
        length.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([number << 3 | 2, *length, left]) + data
