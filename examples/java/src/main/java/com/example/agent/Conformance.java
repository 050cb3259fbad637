package com.example.agent;

import static com.example.agent.Streams.sha256;
import static com.example.agent.Values.*;

import com.google.protobuf.ByteString;
import com.stateward.v1.*;
import io.grpc.StatusRuntimeException;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.stream.Collectors;

/** Procedures of `stateward conformance`, which docs/protocol.md describes. */
final class Conformance {
  private static final int NO_PROCEDURE = 77;
  private final Client client;

  private Conformance(Client client) {
    this.client = client;
  }

  static void run(Client client, String scenario) {
    var procedures = new Conformance(client);
    try {
      switch (scenario.substring(0, scenario.indexOf('/'))) {
        case "advance" -> procedures.advance();
        case "since" -> procedures.saveDigest(client.hydrate(client.hydrate()));
        case "splice" -> procedures.splice();
        case "count" -> procedures.count();
        case "watch" -> procedures.watch();
        case "write-blob" -> procedures.writeBlob();
        case "read-blob" -> procedures.readBlob();
        case "writer" -> Writer.stream(client,
            set("seen", text("1")), set("seen", text("2")), set("seen", text("3")), set("seen", text("4")));
        case "lease" -> procedures.lease();
        case "guard" -> procedures.guard();
        case "effect" -> procedures.effect();
        case "ask" -> procedures.ask();
        case "answer" -> procedures.answer();
        case "record" -> procedures.record();
        case "records" -> procedures.records();
        default -> System.exit(NO_PROCEDURE);
      }
    } catch (StatusRuntimeException error) {
      String reason = Retry.explain(error).getReason();
      procedures.put(set("error", text(reason.isEmpty() ? error.getStatus().getCode().name() : reason)));
    }
  }

  /** Saves the digest of the state on top of it, again and again until there is no conflict. */
  private void advance() {
    while (true) {
      try {
        saveDigest(read());
        return;
      } catch (StatusRuntimeException error) {
        if (!Retry.hasReason(error, "VERSION_MISMATCH")) {
          throw error;
        }
      }
    }
  }

  private void splice() {
    byte[] before = client.hydrate().slots().get("text").getData().toByteArray();
    int offset = new String(before, StandardCharsets.ISO_8859_1).indexOf("Paris"); // a character for each byte
    var change = Splice.newBuilder().setOffset(offset).setDelete(5).setInsert(ByteString.copyFromUtf8("Rome"));
    var edit = SpliceSlot.newBuilder().setSlot("text").setBaseSha256(ByteString.copyFrom(sha256(before)));
    client.save(client.next(Edit.newBuilder().setSpliceSlot(edit.addSplices(change)).build()));
  }

  private void count() {
    var addition = AddNumber.newBuilder().setSlot("count").setDelta((1L << 53) + 1);
    SaveResponse added = put(Edit.newBuilder().setAddNumber(addition).build());
    put(set("seen", text(Long.toString(added.getNumbersOrThrow("count")))));
  }

  private void watch() {
    var seen = new ArrayList<String>();
    Streams.watch(client, 0, event -> {
      seen.add(Long.toString(event.getSequence()));
      return event.getCheckpoint().getStatus() != WorkStatus.WORK_STATUS_COMPLETED;
    });
    put(set("seen", text(String.join(",", seen))));
  }

  private void writeBlob() {
    var data = new byte[2_500_000];
    for (int place = 0; place < data.length; place++) {
      data[place] = (byte) (place % 251);
    }
    var blob = Streams.writeBlob(client, data);
    put(set("file", Value.newBuilder().setMediaType("application/octet-stream").setBlob(blob).build()));
  }

  private void readBlob() {
    ByteString data = Streams.readBlob(client, client.hydrate().slots().get("file").getBlob());
    client.save(client.next(set("seen", text(HexFormat.of().formatHex(sha256(data.toByteArray()))))));
  }

  private void lease() {
    try {
      Work.holding(client, client.thread, 1, held -> {
        Retry.sleep(2000);
        if (held.lost().get() == null) {
          var save = anyVersion(client.next(set("seen", text("held"))));
          save.getOptionsBuilder().setLeaseToken(held.token());
          client.save(save);
        }
      });
    } catch (StatusRuntimeException error) {
      if (!Retry.hasReason(error, "LEASE_HELD")) {
        throw error;
      } // another holder has the thread: nothing is saved any more
    }
  }

  private void guard() {
    String lock = "locks/" + client.thread;
    Work.holding(client, lock, 30, held -> {
      var guard = LeaseGuard.newBuilder().setThread(lock).setToken(held.token()).setExpectedUid(held.uid());
      client.save(anyVersion(client.next(set("seen", text("guarded")))).setGuard(guard));
    });
  }

  private void effect() {
    var tool = new Work.Tool(key -> text("paid"), key -> Optional.of(text("found")));
    put(set("seen", Work.callOnce(client, "", "pay", tool).result()));
  }

  private void ask() {
    client.hydrate();
    client.save(client.next().setStatus(WorkStatus.WORK_STATUS_WAITING).setWaitId("budget")
        .setQuestion(Question.newBuilder().setPrompt("May it cost 300?")));
    while (true) {
      for (Signal signal : client.hydrate().signals()) {
        if (signal.getWaitId().equals("budget")) { // it is acknowledged in the save that uses it
          var use = client.next(set("seen", text(words(signal.getPayload()))));
          client.save(use.addAckSignals(signal.getSignalId()));
          return;
        }
      }
      Retry.sleep(50);
    }
  }

  private void answer() {
    var request = SendSignalRequest.newBuilder()
        .setThread(client.thread).setOptions(Client.newOptions()).setName("answer").setWaitId("budget")
        .setPayload(text("yes")).build();
    Retry.repeat(() -> client.signals().sendSignal(request));
  }

  private void record() {
    while (true) {
      var found = Work.getRecords(client, List.of("count")).get("count");
      int number = found == null ? 1 : Integer.parseInt(words(found.getValue())) + 1;
      try {
        Work.putRecord(client, "count", text(Integer.toString(number)), found == null ? 0 : found.getRevision());
        return;
      } catch (StatusRuntimeException error) {
        if (!Retry.hasReason(error, "RECORD_CONFLICT")) {
          throw error;
        }
      }
    }
  }

  private void records() {
    List<String> keys = Work.listKeys(client, "users/");
    var found = Work.getRecords(client, keys);
    String seen = keys.stream().filter(found::containsKey)
        .map(key -> key + "=" + words(found.get(key).getValue())).collect(Collectors.joining(","));
    put(set("seen", text(seen)));
  }

  /** Reads the head; a thread that does not exist is the empty state at version 0. */
  private Client.Head read() {
    try {
      return client.hydrate();
    } catch (StatusRuntimeException error) {
      if (!Retry.hasReason(error, "THREAD_NOT_FOUND")) {
        throw error;
      }
      client.version = 0;
      client.digest = ByteString.EMPTY;
      client.uid = "";
      return Client.Head.EMPTY;
    }
  }

  private void saveDigest(Client.Head head) {
    String digest = HexFormat.of().formatHex(sha256(new CanonicalForm(head).bytes()));
    client.save(client.next(set("seen", text(digest))));
  }

  /** Saves an edit on top of any version. */
  private SaveResponse put(Edit edit) {
    return client.save(anyVersion(client.next(edit)));
  }

  private static SaveRequest.Builder anyVersion(SaveRequest.Builder request) {
    request.getOptionsBuilder().clearExpectedVersion().clearExpectedDigest();
    return request;
  }
}
