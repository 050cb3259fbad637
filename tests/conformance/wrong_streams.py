"""Wrong clients: edits, watches, blobs, writers, and connections that break in the middle."""

from __future__ import annotations

from typing import Any

from tests.conformance.raw_client import RawClient
from tests.conformance.raw_writer import Writer
from tests.conformance.wrong import Renaming, WithWriter, wrong

from stateward.v1 import state_pb2

# -- edits, watches, blobs, writers -----------------------------------------------------------------------------------


@wrong("splice/middle", "offset is 10, not 11")
class CountsCharacters(RawClient):
    def offset(self, data: bytes) -> int:
        return data.decode().index("Paris")


@wrong("splice/middle", "base_sha256")
class NamesNoBase(RawClient):
    def sha256(self, data: bytes) -> bytes:
        return b""


@wrong("count/large-sum", "18014398509481988")
class RoundsSums(RawClient):
    def digits(self, number: int) -> str:
        return str(int(float(number)))


@wrong("count/large-sum", "not the same as the one before")
class CountsTwice(Renaming):
    pass


@wrong("watch/resumed", "after_cursor is ''")
class ReadsNoEmptyMessages(RawClient):
    def note_cursor(self, request: Any, message: Any) -> None:
        if message.events:
            request.after_cursor = message.cursor


@wrong("watch/resumed", "after_cursor is 'cursor-4'")
class TakesCursorsOfEvents(RawClient):
    def note_cursor(self, request: Any, message: Any) -> None:
        request.after_cursor = message.events[-1].cursor if message.events else message.cursor


@wrong("watch/resumed", "after_cursor is ''")
class BeginsWatchesAnew(RawClient):
    def note_cursor(self, request: Any, message: Any) -> None:
        pass


@wrong("write-blob/broken", "blob.preview")
class MakesItsOwnReference(RawClient):
    def upload(self, data: bytes) -> Any:
        found = super().upload(data)
        return state_pb2.BlobRef(sha256=found.sha256, size_bytes=found.size_bytes)


@wrong("write-blob/broken", "1451424 bytes")
class WritesTheRestOnly(RawClient):
    def upload(self, data: bytes) -> Any:
        answers = iter((data, data[1 << 20 :]))
        right = super().upload

        class Half:
            def __len__(self) -> int:
                return len(data)

            def __getitem__(self, part: slice) -> bytes:
                if part.start == 0:
                    self.now = next(answers)
                return self.now[part]

        return right(Half())  # type: ignore[arg-type]

    def sha256(self, data: Any) -> bytes:
        return b"" if not isinstance(data, bytes) else super().sha256(data)


@wrong("write-blob/broken", "begin.options.expected_version is 0, not missing")
class WritesToABlankThread(RawClient):
    def begin_blob(self, data: bytes) -> Any:
        begin = super().begin_blob(data)
        begin.options.expected_version = 0
        return begin


@wrong("read-blob/broken", "not the right one")
class ReadsTwice(RawClient):
    def next_byte(self, data: bytes) -> int:
        return 0


@wrong("read-blob/broken", "next: ReadBlob", "the client called Save")
class ReadsTheBeginning(RawClient):
    def download(self, blob: Any) -> bytes:
        self.code.pause_after = lambda error, attempt: None
        return super().download(blob)


@wrong("writer/broken", "not those of the stream before")
class OpensAnotherLease(WithWriter):
    class kind(Writer):  # noqa: N801
        def opening(self) -> Any:
            self.open_id = self.client.request_id()
            return super().opening()


@wrong("writer/broken", "options.expected_uid is ''")
class OpensTheStreamOfAName(RawClient):
    """The next thread of the name may give out the same tokens."""

    def uid_of(self, receipt: Any) -> str:
        return ""


@wrong("writer/broken", "frame 2 is not the same")
class RenamesFrames(WithWriter):
    class kind(Writer):  # noqa: N801
        def repeated(self, frame: Any) -> Any:
            frame.save.options.request_id = self.client.request_id()
            return frame


@wrong("writer/broken", "a further call came: Write", "before its frame save")
class ForgetsUnansweredFrames(WithWriter):
    class kind(Writer):  # noqa: N801
        def opening(self) -> Any:
            self.unanswered.clear()
            return super().opening()


@wrong("writer/refused", "before its frame reset")
class NeverResets(WithWriter):
    class kind(Writer):  # noqa: N801
        def reset(self, out: Any) -> None:
            out.put(None)


@wrong("writer/refused", "end of a stream", "instead of ending it", "the client called Write", "a further call came")
class CancelsInTheEnd(WithWriter):
    class kind(Writer):  # noqa: N801
        def end(self, out: Any, answers: Any) -> None:
            answers.cancel()


# -- connections that break in the middle ------------------------------------------------------------------------------


@wrong("advance/cut-page", "the client called Save", "next: Hydrate", pause_after=lambda error, attempt: None)
class TakesABrokenPageForAnError:
    pass


@wrong("advance/cut-save", "expected_version is missing", "next: Save", pause_after=lambda error, attempt: None)
class LeavesRetriesToGrpc:
    """gRPC has seen the headers of the answer, and repeats nothing."""


@wrong("advance/cut-save", "not the same as the one before")
class RenamesHalfAnsweredSaves(Renaming):
    pass


@wrong("watch/cut", "after_cursor is ''")
class WatchesFromTheStart(RawClient):
    def note_cursor(self, request: Any, message: Any) -> None:
        pass


@wrong("read-blob/cut", "not the right one")
class ReadsTheBeginningTwice(RawClient):
    def next_byte(self, data: bytes) -> int:
        return 0


@wrong("write-blob/cut", "the client called Save", "next: WriteBlob", pause_after=lambda error, attempt: None)
class WritesOnce:
    pass


@wrong("writer/cut", "frame 2 is not the same")
class RenamesHalfAnsweredFrames(WithWriter):
    class kind(Writer):  # noqa: N801
        def repeated(self, frame: Any) -> Any:
            frame.save.options.request_id = self.client.request_id()
            return frame
