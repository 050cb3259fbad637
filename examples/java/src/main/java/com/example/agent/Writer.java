package com.example.agent;

import com.google.protobuf.Duration;
import com.stateward.v1.*;
import io.grpc.stub.BlockingClientCall;

/** A writer's stream: the fastest way to save many versions. */
final class Writer {
  private Writer() {}

  /**
   * Saves each edit as one version, and returns the first one. The stream holds the lease, so frames are sent before
   * the answers to earlier ones come.
   */
  static long stream(Client client, Edit... edits) throws Exception {
    BlockingClientCall<WriteRequest, WriteResponse> call = WriterServiceGrpc.newBlockingV2Stub(client.channel).write();
    call.write(WriteRequest.newBuilder().setOpen(OpenWriter.newBuilder()
        .setThread(client.thread).setHolder(client.holder).setRequestId(Client.newId())
        .setTerm(Duration.newBuilder().setSeconds(1))).build());
    WriterOpened opened = call.read().getOpened();
    for (int number = 0; number < edits.length; number++) {
      SaveRequest.Builder save = client.next(edits[number]).clearThread().clearExpectedDigest()
          .setLeaseToken(opened.getLease().getToken()).setExpectedVersion(opened.getLastVersion() + number);
      call.write(WriteRequest.newBuilder().setSave(WriterSave.newBuilder().setFrame(number + 1).setSave(save)).build());
    }
    for (Edit edit : edits) {
      WriteResponse answer = call.read();
      if (answer.hasRefused()) {
        throw new IllegalStateException(answer.getRefused().getReasonName() + ": " + answer.getRefused().getMessage());
      }
      client.version = answer.getSaved().getSave().getVersion();
      client.digest = answer.getSaved().getSave().getDigest();
    }
    call.halfClose();
    if (call.read() != null) { // the daemon ends the stream when it has taken the lease back
      throw new IllegalStateException("an answer to nothing");
    }
    return opened.getLastVersion() + 1;
  }
}
