package com.example.agent;

import static com.example.agent.Values.*;

import com.google.protobuf.ByteString;
import com.google.rpc.ErrorInfo;
import com.stateward.v1.*;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** An agent that keeps its state in Stateward. Its steps are those of ../agent.md. */
final class Agent {
  private final Client client;

  private Agent(Client client) {
    this.client = client;
  }

  public static void main(String[] arguments) throws Exception {
    String phase = String.join(" ", arguments);
    boolean conforms = phase.contains("/"); // a scenario of `stateward conformance`
    String thread = System.getenv().getOrDefault("STATEWARD_THREAD", "example-java");
    var client = new Client(System.getenv("STATEWARD_TARGET"), conforms ? "conformance/" + phase : thread);
    var agent = new Agent(client);
    switch (conforms ? "conformance" : phase) {
      case "begin" -> agent.begin();
      case "answer" -> agent.answer();
      case "resume" -> agent.resume();
      case "count" -> agent.count();
      case "conformance" -> Conformance.run(client, phase);
      default -> throw new IllegalArgumentException("usage: agent begin|answer|resume|count");
    }
    client.channel.shutdown();
  }

  private void begin() throws Exception {
    say("created version %d", client.save(client.next(set("goal", text("a room in Paris")))).getVersion());
    say("saved version %d", client.save(client.next(add("messages", text("hello")))).getVersion());

    var late = client.next(add("messages", text("too late")));
    late.getOptionsBuilder().setExpectedVersion(1).clearExpectedDigest();
    ErrorInfo refusal = client.refusalOf(late);
    say("conflict %s at version %s", refusal.getReason(), refusal.getMetadataOrThrow("current_version"));

    // A conflict is resolved on the newest state: read it, make the change again, save again.
    int known = client.hydrate().logs().get("messages").getEntriesCount();
    var again = client.next(add("messages", text("message " + known)));
    say("resolved as version %d", client.save(again).getVersion());
    SaveResponse replay = client.save(again);
    if (replay.getReceipt().getReplayed()) {
      say("replayed version %d", replay.getVersion());
    }

    Work.holding(client, client.thread, 60, lease -> {
      say("refused %s", client.refusalOf(client.next(set("lease", text("free")))).getReason());
      var held = client.next(set("lease", text("held")));
      held.getOptionsBuilder().setLeaseToken(lease.token());
      say("leased version %d", client.save(held).getVersion());
    });

    long first = Writer.stream(client, IntStream.rangeClosed(1, 10)
        .mapToObj(each -> add("messages", text("frame " + each))).toArray(Edit[]::new));
    say("streamed versions %d to %d", first, client.version);

    pay();

    var document = binary(IntStream.range(0, 1 << 19).mapToObj(Agent::eightDigits).collect(Collectors.joining()));
    var pages = IntStream.range(0, 32).mapToObj(each -> binary(eightDigits(each).repeat(8192))).toArray(Value[]::new);
    SaveResponse large = client.save(client.next(set("document", document), add("pages", pages)));
    say("wrote %d bytes as version %d", document.getData().size() + 32 * 8 * 8192, large.getVersion());

    var ask = client.next().setStatus(WorkStatus.WORK_STATUS_WAITING).setWaitId("approve-room")
        .setQuestion(Question.newBuilder().setPrompt("Book the room?"));
    say("waiting at version %d", client.save(ask).getVersion());
    new CountDownLatch(1).await(); // until it is killed
  }

  /** Pays unless an earlier run has paid. */
  private void pay() {
    String bank = System.getenv("STATEWARD_BANK");
    var tool = new Work.Tool(
        idempotencyKey -> text(bank == null ? "receipt 17" : contentOf(bank)), // here an agent calls it
        idempotencyKey -> Optional.empty()); // and here it asks whether it has paid
    Work.Called paid = Work.callOnce(client, "booking", "pay", tool);
    if (paid.state() == EffectState.EFFECT_STATE_NEW) {
      say("effect NEW: paid");
    } else {
      say("effect %s: %s", paid.state().name().substring("EFFECT_STATE_".length()), words(paid.result()));
    }
  }

  private void answer() {
    var request = SendSignalRequest.newBuilder()
        .setThread(client.thread).setOptions(Client.newOptions()).setName("approve").setPayload(text("yes"))
        .setSender("ana").setWaitId("approve-room").build();
    Retry.repeat(() -> client.signals().sendSignal(request));
    say("answered approve-room");
  }

  private void resume() throws Exception {
    Client.Head head = client.hydrate();
    ByteString all = head.slots().get("document").getData();
    for (Value page : head.logs().get("pages").getEntriesList()) {
      all = all.concat(page.getData());
    }
    String sha256 = HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(all.toByteArray()));
    say("hydrated version %d in %d pages: %d bytes, sha256 %s", client.version, head.pages(), all.size(), sha256);
    pay();
    var booked = client.next(add("messages", text("booked"))).setStatus(WorkStatus.WORK_STATUS_COMPLETED);
    for (Signal signal : head.signals()) {
      if (signal.getWaitId().equals("approve-room")) {
        say("answer %s from %s", words(signal.getPayload()), signal.getSender());
        booked.addAckSignals(signal.getSignalId());
      }
    }
    say("completed version %d", client.save(booked).getVersion());
  }

  private void count() {
    var add = Edit.newBuilder().setAddNumber(AddNumber.newBuilder().setSlot("count").setDelta(1)).build();
    SaveResponse last = null;
    int replayed = 0;
    for (int number = 1; number <= 400; number++) {
      var addition = client.next(add).setThread(client.thread + "-count").setOptions(Client.newOptions());
      last = client.save(addition);
      replayed += last.getReceipt().getReplayed() ? 1 : 0;
      if (number % 100 == 0) {
        say("saved %d", number);
      }
    }
    say("counted %d, replayed %d", last.getNumbersOrThrow("count"), replayed);
  }

  private static String eightDigits(int number) {
    return Integer.toString(100_000_000 + number).substring(1);
  }

  private static void say(String line, Object... values) {
    System.out.println(line.formatted(values));
  }
}
