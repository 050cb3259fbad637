package com.example.agent;

import com.google.protobuf.Duration;
import com.stateward.v1.*;
import io.grpc.StatusException;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.BlockingClientCall;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;

/** A writer's stream: the fastest way to save many versions. It has the frames, across all its connections. */
final class Writer {
  private final Client client;
  private OpenWriter opening;
  private final ArrayDeque<WriterSave> sent = new ArrayDeque<>(); // not answered yet
  private final List<Edit> refused; // to be sent anew
  private BlockingClientCall<WriteRequest, WriteResponse> call;
  private long token;
  private long number; // of the last frame
  private long first;

  private Writer(Client client, List<Edit> edits) {
    this.client = client;
    this.refused = new ArrayList<>(edits);
    opening = OpenWriter.newBuilder()
        .setThread(client.thread).setOptions(Client.newOptions()).setHolder(client.holder)
        .setTerm(Duration.newBuilder().setSeconds(1)).build();
  }

  /**
   * Saves each edit as one version, and returns the first one. The edits must fit any state. The stream holds the lease,
   * so frames are sent before the answers to earlier ones come.
   */
  static long stream(Client client, Edit... edits) {
    var writer = new Writer(client, List.of(edits));
    return Retry.repeat(writer::run);
  }

  /** Runs one connection, until every frame is answered. */
  private long run() throws StatusException, InterruptedException {
    call = WriterServiceGrpc.newBlockingV2Stub(client.channel).write();
    send(WriteRequest.newBuilder().setOpen(opening).build()); // the same lease as before
    for (WriteResponse answer; (answer = call.read()) != null; ) {
      switch (answer.getFrameCase()) {
        case OPENED -> opened(answer.getOpened());
        case SAVED -> { // frames are answered in order
          sent.remove();
          client.remember(answer.getSaved().getSave());
        }
        case REFUSED -> refused(answer.getRefused());
        case RESET -> sendAnew(answer.getReset().getLastVersion());
        default -> throw new IllegalStateException("an answer to nothing");
      }
      if (sent.isEmpty() && refused.isEmpty()) {
        call.halfClose(); // the daemon takes the lease back, and ends the stream
      }
    }
    return first;
  }

  private void opened(WriterOpened opened) throws InterruptedException {
    if (token != 0 && token != opened.getLease().getToken()) {
      throw new IllegalStateException("the lease was lost: another writer may have saved");
    }
    token = opened.getLease().getToken();
    var same = opening.getOptions().toBuilder().setExpectedUid(opened.getReceipt().getUid());
    opening = opening.toBuilder().setOptions(same).build();
    first = first == 0 ? opened.getLastVersion() + 1 : first;
    if (!refused.isEmpty()) { // nothing that follows a refused frame was saved
      sent.forEach(frame -> refused.addAll(frame.getSave().getDiff().getEditsList()));
      sent.clear();
    }
    for (WriterSave frame : sent) { // the same again
      send(WriteRequest.newBuilder().setSave(frame).build());
    }
    sendAnew(opened.getLastVersion());
  }

  private void refused(WriterRefused answer) throws InterruptedException {
    StatusRuntimeException error = StatusProto.toStatusRuntimeException(answer.getStatus());
    if (!Retry.hasReason(error, "VERSION_MISMATCH") && !Retry.hasReason(error, "WRITER_ABORTED")) {
      throw error;
    }
    if (refused.isEmpty()) { // until the reset, the daemon refuses every frame
      send(WriteRequest.newBuilder().setReset(ResetWriter.getDefaultInstance()).build());
    }
    refused.addAll(sent.remove().getSave().getDiff().getEditsList());
  }

  /** Sends the refused edits as new frames on top of a version. */
  private void sendAnew(long version) throws InterruptedException {
    for (Edit edit : refused) {
      SaveRequest.Builder save = client.next(edit).clearThread();
      save.getOptionsBuilder().setExpectedVersion(version++).clearExpectedDigest().setLeaseToken(token);
      var frame = WriterSave.newBuilder().setFrame(++number).setSave(save).build();
      sent.add(frame);
      send(WriteRequest.newBuilder().setSave(frame).build());
    }
    refused.clear();
  }

  /**
   * Sends a frame. A stream that has ended takes no more of them. read() says why it has ended, after the answers that came
   * before: an error of write() would pass over them, and over the frames that were not sent yet.
   */
  private void send(WriteRequest frame) throws InterruptedException {
    try {
      call.write(frame);
    } catch (StatusException ended) {
      // read() throws the same
    }
  }
}
