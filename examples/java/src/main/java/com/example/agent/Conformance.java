package com.example.agent;

import static com.example.agent.Values.*;

import com.google.protobuf.ByteString;
import com.stateward.v1.*;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/** Procedures of `stateward conformance`, which docs/protocol.md describes. */
final class Conformance {
  private static final int NO_PROCEDURE = 77;
  private static final int ATTEMPT_SECONDS = 5;
  private static final int PATIENCE_SECONDS = 20;
  private final Client client;

  private Conformance(Client client) {
    this.client = client;
  }

  static void run(Client client, String scenario) throws Exception {
    var procedures = new Conformance(client);
    try {
      switch (scenario.substring(0, scenario.indexOf('/'))) {
        case "advance" -> procedures.advance();
        case "count" -> procedures.count();
        case "splice" -> procedures.splice();
        default -> System.exit(NO_PROCEDURE);
      }
    } catch (StatusRuntimeException error) {
      String reason = Client.explain(error).getReason();
      String name = reason.isEmpty() ? error.getStatus().getCode().name() : reason;
      client.save(anyVersion(client.next(set("error", text(name)))));
    }
  }

  /** Saves the digest of the state on top of it, again and again until there is no conflict. */
  private void advance() throws Exception {
    while (true) {
      try {
        save(client.next(set("seen", text(hex(sha256(new CanonicalForm(read()).bytes()))))));
        return;
      } catch (StatusRuntimeException error) {
        if (!Client.explain(error).getReason().equals("VERSION_MISMATCH")) {
          throw error;
        }
      }
    }
  }

  private void count() throws Exception {
    var addition = AddNumber.newBuilder().setSlot("count").setDelta((1L << 53) + 1);
    SaveResponse added = save(anyVersion(client.next(Edit.newBuilder().setAddNumber(addition).build())));
    save(anyVersion(client.next(set("seen", text(Long.toString(added.getNumbersOrThrow("count")))))));
  }

  private void splice() throws Exception {
    byte[] before = client.hydrate().slots().get("text").getData().toByteArray();
    int offset = new String(before, StandardCharsets.ISO_8859_1).indexOf("Paris"); // a character for each byte
    var change = Splice.newBuilder().setOffset(offset).setDelete(5).setInsert(ByteString.copyFromUtf8("Rome"));
    var edit = SpliceSlot.newBuilder().setSlot("text").setBaseSha256(ByteString.copyFrom(sha256(before)));
    save(client.next(Edit.newBuilder().setSpliceSlot(edit.addSplices(change)).build()));
  }

  /** Reads the head; a thread that does not exist is the empty state at version 0. */
  private Client.Head read() {
    try {
      return client.hydrate();
    } catch (StatusRuntimeException error) {
      if (!Client.explain(error).getReason().equals("THREAD_NOT_FOUND")) {
        throw error;
      }
      client.version = 0;
      client.digest = ByteString.EMPTY;
      return new Client.Head(Map.of(), Map.of(), List.of(), 0);
    }
  }

  private static SaveRequest.Builder anyVersion(SaveRequest.Builder request) {
    return request.clearExpectedVersion().clearExpectedDigest();
  }

  /**
   * Saves, beyond the retries of the service config: an attempt without an answer is repeated, and the client waits
   * until another sidecar gives the thread up.
   */
  private SaveResponse save(SaveRequest.Builder request) throws InterruptedException {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
    while (true) {
      try {
        return client.checkpoints.withDeadlineAfter(ATTEMPT_SECONDS, TimeUnit.SECONDS).save(request.build());
      } catch (StatusRuntimeException error) {
        var refusal = Client.explain(error);
        String freeInS = refusal.getReason().equals("NOT_OWNER") ? refusal.getMetadataOrDefault("free_in_s", "") : "";
        if (freeInS.isEmpty() && error.getStatus().getCode() != Status.Code.DEADLINE_EXCEEDED) {
          throw error;
        }
        long pauseMs = freeInS.isEmpty() ? 0 : (long) (Double.parseDouble(freeInS) * 1000);
        if (System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(pauseMs) > end) {
          throw error;
        }
        java.lang.Thread.sleep(pauseMs);
      }
    }
  }

  private static byte[] sha256(byte[] data) throws Exception {
    return MessageDigest.getInstance("SHA-256").digest(data);
  }

  private static String hex(byte[] data) {
    return HexFormat.of().formatHex(data);
  }
}
