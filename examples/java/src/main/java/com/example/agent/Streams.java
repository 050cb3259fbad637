package com.example.agent;

import com.google.protobuf.ByteString;
import com.stateward.v1.*;
import io.grpc.StatusException;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.BlockingClientCall;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.function.Predicate;

/** Streams that go on after a break: watches, and blobs in both directions. */
final class Streams {
  private static final int MESSAGE_BYTES = 1 << 20;

  private Streams() {}

  /**
   * Follows the events of the thread after a sequence until `take` returns false. A watch that breaks goes on after the
   * last cursor, for as long as it takes.
   */
  static void watch(Client client, long afterSequence, Predicate<JournalEvent> take) {
    var request = WatchRequest.newBuilder().setThread(client.thread).setAfterSequence(afterSequence);
    for (int attempt = 0; ; attempt++) {
      String cursor = request.getAfterCursor();
      try {
        Retry.once(() -> follow(client, request, take));
        return;
      } catch (StatusRuntimeException error) {
        attempt = request.getAfterCursor().equals(cursor) ? attempt : 0;
        long pauseMs = Retry.pauseAfterMs(error, attempt);
        if (pauseMs == Retry.FINAL) {
          throw error;
        }
        Retry.sleep(pauseMs);
      }
    }
  }

  private static Void follow(Client client, WatchRequest.Builder request, Predicate<JournalEvent> take)
      throws StatusException, InterruptedException {
    var call = ThreadServiceGrpc.newBlockingV2Stub(client.channel).watch(request.build());
    for (WatchResponse message; (message = call.read()) != null; ) {
      for (JournalEvent event : message.getEventsList()) {
        if (!take.test(event)) {
          call.cancel("enough", null);
          return null;
        }
      }
      request.setAfterCursor(message.getCursor()); // of every message, also of one without events
    }
    return null;
  }

  /** Writes a blob. One that breaks off is written again from its first byte. A save then names the reference. */
  static BlobRef writeBlob(Client client, byte[] data) {
    var begin = BlobBegin.newBuilder().setThread(client.thread).setSizeBytes(data.length)
        .setSha256(ByteString.copyFrom(sha256(data)));
    return Retry.repeat(() -> {
      BlockingClientCall<WriteBlobRequest, WriteBlobResponse> call =
          BlobServiceGrpc.newBlockingV2Stub(client.channel).writeBlob();
      // A stream that has ended takes no more messages; read() says why it has ended.
      boolean isOpen = call.write(WriteBlobRequest.newBuilder().setBegin(begin).build());
      for (int at = 0; isOpen && at < data.length; at += MESSAGE_BYTES) {
        var piece = ByteString.copyFrom(data, at, Math.min(MESSAGE_BYTES, data.length - at));
        isOpen = call.write(WriteBlobRequest.newBuilder().setData(piece).build());
      }
      call.halfClose();
      return call.read().getBlob();
    });
  }

  /** Reads a blob. After a break it goes on at the next byte. */
  static ByteString readBlob(Client client, BlobRef blob) {
    var data = ByteString.newOutput();
    return Retry.repeat(() -> {
      var request = ReadBlobRequest.newBuilder().setThread(client.thread).setBlob(blob).setOffset(data.size()).build();
      var call = BlobServiceGrpc.newBlockingV2Stub(client.channel).readBlob(request);
      for (ReadBlobResponse message; (message = call.read()) != null; ) {
        data.write(message.getData().toByteArray(), 0, message.getData().size());
      }
      return data.toByteString();
    });
  }

  static byte[] sha256(byte[] data) {
    try {
      return MessageDigest.getInstance("SHA-256").digest(data);
    } catch (NoSuchAlgorithmException missing) {
      throw new IllegalStateException(missing);
    }
  }
}
