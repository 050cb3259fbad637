"""A daemon in memory: just enough of the contract to test the client against, with faults on demand."""

# ruff: noqa: N802  gRPC names the methods
from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import code_pb2, error_details_pb2, status_pb2
from tests.client.fake_store import FakeStore, Fault, StoredThread, Version

from stateward._operations.threads import numbers_of, spans_of
from stateward.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    checkpoint_pb2,
    checkpoint_service_pb2,
    checkpoint_service_pb2_grpc,
    diff_pb2,
    state_pb2,
    thread_pb2,
    thread_service_pb2,
    thread_service_pb2_grpc,
)
from stateward.v1.write_pb2 import Receipt
from stateward_sidecar.store.items.recordviews import matches

CODES = {
    "VERSION_MISMATCH": grpc.StatusCode.ABORTED,
    "THREAD_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "VERSION_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "VERSION_PRUNED": grpc.StatusCode.OUT_OF_RANGE,
    "INVALID_FIELD": grpc.StatusCode.INVALID_ARGUMENT,
    "EDIT_CONFLICT": grpc.StatusCode.FAILED_PRECONDITION,
    "NO_ARCHIVE": grpc.StatusCode.FAILED_PRECONDITION,
    "SHUTTING_DOWN": grpc.StatusCode.UNAVAILABLE,
    "THREAD_EXISTS": grpc.StatusCode.ALREADY_EXISTS,
    "CHECKPOINT_ID_REUSED": grpc.StatusCode.ALREADY_EXISTS,
}


def abort(context: grpc.ServicerContext, fault: Fault) -> NoReturn:
    code = CODES[fault.reason]
    info = error_details_pb2.ErrorInfo(reason=fault.reason, domain="stateward", metadata=fault.metadata)
    packed = AnyMessage()
    packed.Pack(info)
    status = status_pb2.Status(code=getattr(code_pb2, code.name), message=fault.reason, details=[packed])
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, f"{fault.reason} {fault.metadata}")
    raise AssertionError


def project(state: state_pb2.State, projection: checkpoint_service_pb2.Projection) -> state_pb2.State:
    shown = state_pb2.State(partial=True)
    for name in projection.slots:
        if name in state.slots:
            shown.slots[name].CopyFrom(state.slots[name])
    for selection in projection.logs:
        if selection.log in state.logs:
            log = state.logs[selection.log]
            skipped = max(len(log.entries) - selection.last, 0) if selection.HasField("last") else 0
            shown.logs[selection.log].CopyFrom(log)
            del shown.logs[selection.log].entries[:skipped]
            shown.logs[selection.log].first_index = log.first_index + skipped
    return shown


def pages_of(state: state_pb2.State, max_bytes: int) -> Iterator[checkpoint_service_pb2.HydrateResponse]:
    """One value a page, and values above `max_bytes` in pieces: the worst case for a client."""

    def pieces(value: state_pb2.Value, **place: Any) -> Iterator[checkpoint_service_pb2.HydrateResponse]:
        for offset in range(0, len(value.data), max_bytes):
            chunk = checkpoint_service_pb2.ValueChunk(
                media_type=value.media_type,
                offset=offset,
                size_bytes=len(value.data),
                data=value.data[offset : offset + max_bytes],
                **place,
            )
            yield checkpoint_service_pb2.HydrateResponse(chunk=chunk)

    for name, value in sorted(state.slots.items()):
        if len(value.data) > max_bytes:
            yield from pieces(value, slot=name)
        else:
            yield checkpoint_service_pb2.HydrateResponse(state=state_pb2.State(slots={name: value}))
    for name, log in sorted(state.logs.items()):
        for position, value in enumerate(log.entries):
            index = log.first_index + position
            if len(value.data) > max_bytes:
                yield from pieces(value, log=name, index=index)
            else:
                part = state_pb2.Log(first_index=index, entries=[value], rewritten_version=log.rewritten_version)
                yield checkpoint_service_pb2.HydrateResponse(state=state_pb2.State(logs={name: part}))
        if not log.entries:
            yield checkpoint_service_pb2.HydrateResponse(state=state_pb2.State(logs={name: log}))


class Checkpoints(checkpoint_service_pb2_grpc.CheckpointServiceServicer):
    page_bytes = 3 * 1024 * 1024

    def __init__(self, store: FakeStore) -> None:
        self.store = store

    def Save(self, request: Any, context: Any) -> Any:
        self.store.saves.append(request)
        return self.store.save(request)

    def BatchSave(self, request: Any, context: Any) -> Any:
        for number, save in enumerate(request.saves):
            thread = self.store.threads.get((save.namespace, save.thread))
            head = thread.branches.get(save.branch, 0) if thread else 0
            if save.options.expected_version != head:
                raise Fault("VERSION_MISMATCH", current_version=head, field=f"saves[{number}]")
        return checkpoint_service_pb2.BatchSaveResponse(saves=[self.store.save(save) for save in request.saves])

    def Hydrate(self, request: Any, context: Any) -> Any:
        thread = self.store.thread(request.namespace, request.thread)
        ref = request.version if request.HasField("version") else None
        version = self.store.resolve(thread, request.branch, ref)
        partial = request.HasField("projection")
        state = project(version.state, request.projection) if partial else version.state
        if state.ByteSize() <= self.page_bytes:
            return checkpoint_service_pb2.HydrateResponse(checkpoint=version.checkpoint, state=state)
        pages, number = list(pages_of(state, self.page_bytes)), int(request.page_token or 0)
        page = pages[number]
        page.checkpoint.CopyFrom(version.checkpoint)
        last = number + 1 == len(pages)
        page.state.partial = partial or not last
        page.next_page_token = "" if last else str(number + 1)
        return page

    def GetCheckpoint(self, request: Any, context: Any) -> Any:
        thread = self.store.thread(request.namespace, request.thread)
        ref = request.version if request.HasField("version") else None
        found = self.store.resolve(thread, request.branch, ref).checkpoint
        return checkpoint_service_pb2.GetCheckpointResponse(checkpoint=found)

    def ListCheckpoints(self, request: Any, context: Any) -> Any:
        if request.thread != "-":
            self.store.thread(request.namespace, request.thread)
        found = [
            version.checkpoint
            for (namespace, name), thread in self.store.threads.items()
            if namespace == request.namespace and request.thread in ("-", name)
            for version in thread.versions.values()
            if request.branch in ("", version.checkpoint.branch)
            and dict(request.labels).items() <= dict(version.checkpoint.labels).items()
            and matches(version.checkpoint.attributes, request.filters)
        ]
        found.sort(key=lambda each: (each.create_time.ToNanoseconds(), each.version), reverse=True)
        start, size = int(request.page_token or 0), request.page_size or 100
        token = str(start + size) if start + size < len(found) else ""
        page = found[start : start + size]
        contents = [self._content(request, each) for each in page] if request.include_states else []
        return checkpoint_service_pb2.ListCheckpointsResponse(
            checkpoints=page, next_page_token=token, contents=contents
        )

    def _content(self, request: Any, checkpoint: Any) -> Any:
        version = self.store.thread(request.namespace, checkpoint.thread).versions[checkpoint.version]
        state = project(version.state, request.projection) if request.HasField("projection") else version.state
        return checkpoint_service_pb2.CheckpointContent(state=state)

    def ReadHistory(self, request: Any, context: Any) -> Iterator[Any]:
        thread = self.store.thread(request.namespace, request.thread)
        ref = request.version if request.HasField("version") else None
        version = self.store.resolve(thread, request.branch, ref)
        line = [version]
        while line[-1].checkpoint.parent_version > max(request.oldest.version - 1, 0):
            line.append(thread.versions[line[-1].checkpoint.parent_version])
        newest_first = request.order == checkpoint_service_pb2.READ_ORDER_NEWEST_FIRST
        for position, each in enumerate(line if newest_first else reversed(line)):
            response = checkpoint_service_pb2.ReadHistoryResponse(checkpoint=each.checkpoint)
            if position == 0:
                whole = not request.HasField("projection")
                response.state.CopyFrom(each.state if whole else project(each.state, request.projection))
            if position or newest_first:
                response.diff.CopyFrom(each.diff)
            yield response

    def DiffCheckpoints(self, request: Any, context: Any) -> Any:
        thread = self.store.thread(request.namespace, request.thread)
        base = request.base
        old = self.store.resolve(thread, request.branch, base).state if base.version else state_pb2.State()
        new = self.store.resolve(thread, request.branch, request.target if request.HasField("target") else None).state
        diff = diff_pb2.Diff()
        for name in sorted(old.slots.keys() - new.slots.keys()):
            diff.edits.add().delete_slot.slot = name
        for name, value in sorted(new.slots.items()):
            if name not in old.slots or old.slots[name] != value:
                diff.edits.add().set_slot.CopyFrom(diff_pb2.SetSlot(slot=name, value=value))
        for name, log in sorted(new.logs.items()):
            known = len(old.logs[name].entries) if name in old.logs else 0
            if log.entries[known:]:
                diff.edits.add().append.CopyFrom(diff_pb2.Append(log=name, entries=log.entries[known:]))
        return checkpoint_service_pb2.DiffCheckpointsResponse(diff=diff)


class Threads(thread_service_pb2_grpc.ThreadServiceServicer):
    def __init__(self, store: FakeStore) -> None:
        self.store = store

    def GetThread(self, request: Any, context: Any) -> Any:
        return self.store.describe_all(request.namespace, request.thread)

    def ListThreads(self, request: Any, context: Any) -> Any:
        found = [
            self.store.describe(*key)
            for key, thread in self.store.threads.items()
            if key[0] == request.namespace
            and key[1].startswith(request.name_prefix)
            and dict(request.labels).items() <= dict(thread.options.labels).items()
        ]
        found = [each for each in found if not request.statuses or each.status in request.statuses][::-1]
        start, size = int(request.page_token or 0), request.page_size or 100
        token = str(start + size) if start + size < len(found) else ""
        return thread_service_pb2.ListThreadsResponse(threads=found[start : start + size], next_page_token=token)

    def ForkThread(self, request: Any, context: Any) -> Any:
        source = self.store.thread(request.namespace, request.thread)
        key = (request.namespace, request.new_thread)
        if key in self.store.threads:
            raise Fault("THREAD_EXISTS", thread=request.new_thread)
        ref = request.version if request.HasField("version") else None
        versions = (
            list(source.versions.values())
            if request.all_versions
            else [self.store.resolve(source, request.branch, ref)]
        )
        self.store.created += 1
        copy = self.store.threads[key] = StoredThread(f"{self.store.created:032x}")
        for version in versions:
            checkpoint = checkpoint_pb2.Checkpoint()
            checkpoint.CopyFrom(version.checkpoint)
            checkpoint.thread, checkpoint.uid = request.new_thread, copy.uid
            if not request.all_versions:
                checkpoint.version, checkpoint.parent_version, checkpoint.branch = 1, 0, "main"
            copy.versions[checkpoint.version] = Version(checkpoint, version.state, version.diff, version.retired)
            copy.branches[checkpoint.branch] = checkpoint.version
        if request.all_versions:
            copy.tags.update(source.tags)
        return thread_service_pb2.ForkThreadResponse(thread=self.store.describe(*key))

    def PruneThread(self, request: Any, context: Any) -> Any:
        thread = self.store.thread(request.namespace, request.thread)
        kept = {*thread.branches.values(), *thread.tags.values()}
        chosen = {*numbers_of(request.versions)} if request.HasField("versions") else {*thread.versions}
        gone = sorted(chosen & thread.versions.keys() - kept)
        if not request.dry_run:
            for number in gone:
                del thread.versions[number]
        left = len(thread.versions)
        return thread_service_pb2.PruneThreadResponse(pruned=spans_of(gone), retained_versions=left)

    def DeleteThread(self, request: Any, context: Any) -> Any:
        key = (request.namespace, request.thread)
        if key not in self.store.threads and request.allow_missing:
            return thread_service_pb2.DeleteThreadResponse(receipt=Receipt())
        thread = self.store.thread(*key)
        self.store.emit(*key, thread, deleted=thread_service_pb2.ThreadDeletion(cause="request"))
        del self.store.threads[key]
        return thread_service_pb2.DeleteThreadResponse(receipt=Receipt(uid=thread.uid))

    def UpdateThread(self, request: Any, context: Any) -> Any:
        thread = self.store.thread(request.namespace, request.thread)
        for path in request.update_mask.paths:
            thread.options.ClearField(path)
        named = thread_pb2.ThreadOptions()
        request.update_mask.MergeMessage(request.update, named)
        thread.options.MergeFrom(named)
        found = self.store.describe(request.namespace, request.thread)
        return thread_service_pb2.UpdateThreadResponse(thread=found)

    def SetTag(self, request: Any, context: Any) -> Any:
        thread = self.store.thread(request.namespace, request.thread)
        ref = request.version if request.HasField("version") else None
        number = self.store.resolve(thread, request.branch, ref).checkpoint.version
        tagged = thread.tags.get(request.tag, 0)
        if request.HasField("expected_tagged_version") and request.expected_tagged_version != tagged:
            raise Fault("VERSION_MISMATCH", current_version=tagged)
        thread.tags[request.tag] = number
        tag = thread_pb2.Tag(name=request.tag, version=number)
        self.store.emit(request.namespace, request.thread, thread, tag_set=tag)
        return thread_service_pb2.SetTagResponse(tag=tag)

    def DeleteTag(self, request: Any, context: Any) -> Any:
        thread = self.store.thread(request.namespace, request.thread)
        if request.tag not in thread.tags:
            raise Fault("VERSION_NOT_FOUND", thread=request.thread)
        tag = thread_pb2.Tag(name=request.tag, version=thread.tags.pop(request.tag))
        return thread_service_pb2.DeleteTagResponse(tag=tag)

    def Watch(self, request: Any, context: Any) -> Iterator[Any]:
        with self.store.lock:
            seen = len(self.store.log)
            if request.after_cursor:
                seen = int(request.after_cursor)
            elif request.HasField("after_sequence"):
                mine = [int(each.cursor) for each in self.store.log if each.thread == request.thread]
                seen = mine[request.after_sequence - 1] if request.after_sequence else 0
        context.add_callback(self._wake)
        yield thread_service_pb2.WatchResponse(cursor=str(seen))
        while context.is_active():
            with self.store.lock:
                if len(self.store.log) == seen:
                    self.store.changed.wait(0.5)
                events = self.store.log[seen:]
                seen += len(events)
            events = [each for each in events if request.thread in ("-", each.thread)]
            if events:
                yield thread_service_pb2.WatchResponse(events=events, cursor=str(seen))
                if self.store.break_streams:
                    self.store.break_streams -= 1
                    abort(context, Fault("SHUTTING_DOWN"))

    def _wake(self) -> None:
        with self.store.lock:
            self.store.changed.notify_all()

    def WaitDurable(self, request: Any, context: Any) -> Any:
        thread = self.store.thread(request.namespace, request.thread)
        if request.receipt.sequence > len(thread.events):
            raise Fault("VERSION_NOT_FOUND", thread=request.thread)
        return thread_service_pb2.WaitDurableResponse(receipt=Receipt(durability=1), newest_sequence=len(thread.events))


class Admin(admin_service_pb2_grpc.AdminServiceServicer):
    def __init__(self, store: FakeStore) -> None:
        self.store = store

    def GetServerInfo(self, request: Any, context: Any) -> Any:
        return admin_service_pb2.GetServerInfoResponse(version="0.0.0", default_durability=1)

    def GetStats(self, request: Any, context: Any) -> Any:
        return admin_service_pb2.GetStatsResponse(threads=len(self.store.threads))

    def Verify(self, request: Any, context: Any) -> Iterator[Any]:
        yield admin_service_pb2.VerifyResponse(progress={"items": 1, "threads": len(self.store.threads)})


class Faults(grpc.ServerInterceptor):
    """Turns a Fault into the error of the contract, and makes the faults that the store asks for."""

    def __init__(self, store: FakeStore) -> None:
        self.store = store

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = continuation(details)
        if handler is None or handler.response_streaming:
            return handler

        def answer(request: Any, context: Any) -> Any:
            with self.store.lock:
                if self.store.fail_before:
                    self.store.fail_before -= 1
                    abort(context, Fault("SHUTTING_DOWN"))
                try:
                    response = handler.unary_unary(request, context)
                except Fault as fault:
                    abort(context, fault)
                if self.store.lose_answers and details.method.endswith("Save"):
                    self.store.lose_answers -= 1
                    context.abort(self.store.lost_code, "connection lost")
                return response

        return grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer
        )


class FakeServer:
    """The fake, listening. `stop` and `start` again keep what is stored, as a restarted daemon would."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.store = FakeStore()
        self.checkpoints = Checkpoints(self.store)
        self.start()

    def start(self) -> None:
        self._server = grpc.server(ThreadPoolExecutor(16), interceptors=[Faults(self.store)])
        checkpoint_service_pb2_grpc.add_CheckpointServiceServicer_to_server(self.checkpoints, self._server)
        thread_service_pb2_grpc.add_ThreadServiceServicer_to_server(Threads(self.store), self._server)
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(Admin(self.store), self._server)
        self._server.add_insecure_port(self.target)
        self._server.start()

    def kill(self) -> None:
        self._server.stop(None).wait()
