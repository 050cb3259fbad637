package com.example.agent;

import com.google.gson.Gson;
import com.google.protobuf.ByteString;
import com.google.rpc.ErrorInfo;
import com.stateward.v1.*;
import io.grpc.Grpc;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.*;
import java.util.concurrent.TimeUnit;

/**
 * What every client needs beside the generated stubs: a channel, request ids, and pages. It also remembers the version of
 * the thread that the agent builds on.
 */
final class Client {
  private static final int CALL_SECONDS = 5;
  final ManagedChannel channel;
  final String thread;
  final Holder holder = Holder.newBuilder().setName("agent").setIncarnation(newId()).build();
  long version;
  ByteString digest = ByteString.EMPTY;
  /** Of the thread that was read or saved: a later thread of the same name has another one. */
  String uid = "";

  /** Opens a channel with the retry policy of the contract. It connects with the first call. */
  @SuppressWarnings("unchecked")
  Client(String target, String thread) throws IOException {
    Map<String, ?> policy = new Gson().fromJson(Files.readString(Path.of("proto/service_config.json")), Map.class);
    channel = Grpc.newChannelBuilder(target, Tls.transport(target))
        .defaultServiceConfig(policy)
        .perRpcBufferLimit(64 << 20) // by default, gRPC retries no request above 1 MiB
        .retryBufferSize(256 << 20)
        .maxInboundMessageSize(64 << 20) // by default 4 MiB
        .build();
    // When the daemon is away, gRPC's pauses between attempts to connect grow to two minutes.
    new Timer(true).schedule(new TimerTask() {
      @Override
      public void run() {
        channel.resetConnectBackoff();
      }
    }, 1000, 1000);
    this.thread = thread;
  }

  // Each attempt of a call takes its stub anew, for its deadline.

  CheckpointServiceGrpc.CheckpointServiceBlockingStub checkpoints() {
    return CheckpointServiceGrpc.newBlockingStub(channel).withDeadlineAfter(CALL_SECONDS, TimeUnit.SECONDS);
  }

  EffectServiceGrpc.EffectServiceBlockingStub effects() {
    return EffectServiceGrpc.newBlockingStub(channel).withDeadlineAfter(CALL_SECONDS, TimeUnit.SECONDS);
  }

  LeaseServiceGrpc.LeaseServiceBlockingStub leases() {
    return LeaseServiceGrpc.newBlockingStub(channel).withDeadlineAfter(CALL_SECONDS, TimeUnit.SECONDS);
  }

  RecordServiceGrpc.RecordServiceBlockingStub records() {
    return RecordServiceGrpc.newBlockingStub(channel).withDeadlineAfter(CALL_SECONDS, TimeUnit.SECONDS);
  }

  SignalServiceGrpc.SignalServiceBlockingStub signals() {
    return SignalServiceGrpc.newBlockingStub(channel).withDeadlineAfter(CALL_SECONDS, TimeUnit.SECONDS);
  }

  ThreadServiceGrpc.ThreadServiceBlockingStub threads() {
    return ThreadServiceGrpc.newBlockingStub(channel).withDeadlineAfter(CALL_SECONDS, TimeUnit.SECONDS);
  }

  /** Makes a request id. All attempts of a request have the same one. */
  static String newId() {
    return UUID.randomUUID().toString();
  }

  /** Makes the options of a write that is safe to repeat. */
  static WriteOptions.Builder newOptions() {
    return WriteOptions.newBuilder().setRequestId(newId());
  }

  /**
   * Makes a request with these edits, which the daemon saves only on top of the version that the agent knows, and only to
   * the thread that it knows: if that was deleted, the request does not bring it back.
   */
  SaveRequest.Builder next(Edit... edits) {
    var options = newOptions().setExpectedVersion(version).setExpectedDigest(digest).setExpectedUid(uid);
    var diff = Diff.newBuilder().addAllEdits(List.of(edits));
    return SaveRequest.newBuilder().setThread(thread).setOptions(options).setDiff(diff);
  }

  /** Saves, and remembers the new head. */
  SaveResponse save(SaveRequest.Builder request) {
    SaveRequest whole = request.build();
    SaveResponse saved = Retry.repeat(() -> checkpoints().save(whole));
    remember(saved);
    return saved;
  }

  /** Builds on this version from now on. */
  void remember(SaveResponse saved) {
    version = saved.getVersion();
    digest = saved.getReceipt().getDigest();
    uid = saved.getReceipt().getUid();
  }

  /** Makes a save that the daemon must refuse, and returns why it did. */
  ErrorInfo refusalOf(SaveRequest.Builder request) {
    try {
      throw new IllegalStateException("saved as version " + save(request).getVersion());
    } catch (StatusRuntimeException error) {
      return Retry.explain(error);
    }
  }

  /** A state that was read, its version, the signals that wait for the agent, and the number of pages. */
  record Head(
      Map<String, Value> slots, Map<String, Log> logs, Checkpoint version, List<Signal> signals, int pages) {
    static final Head EMPTY = new Head(Map.of(), Map.of(), Checkpoint.getDefaultInstance(), List.of(), 0);
  }

  /** Reads the head, joins its pages, and remembers its version. */
  Head hydrate() {
    return hydrate(Head.EMPTY);
  }

  /** Reads what has changed since a state that was read whole, and returns the state of the head. */
  Head hydrate(Head known) {
    var slots = new HashMap<String, Value>();
    var logs = new HashMap<String, Log>();
    var waiting = new ArrayList<Signal>();
    var request = HydrateRequest.newBuilder().setThread(thread).setIncludeSignals(true)
        .setKnownVersion(known.version().getVersion()).setKnownDigest(known.version().getDigest());
    var piece = ByteString.EMPTY;
    for (int pages = 1; ; pages++) {
      HydrateResponse page = Retry.repeat(() -> checkpoints().hydrate(request.build()));
      if (pages == 1 && page.getBaseVersion() != 0) { // else the answer is the whole state
        slots.putAll(known.slots());
        logs.putAll(known.logs());
      }
      slots.keySet().removeAll(page.getRemovedSlotsList());
      logs.keySet().removeAll(page.getRemovedLogsList());
      waiting.addAll(page.getSignalsList());
      slots.putAll(page.getState().getSlotsMap());
      // A log that is there goes on.
      page.getState().getLogsMap().forEach((name, part) -> logs.merge(name, part, (log, more) -> log.toBuilder()
          .addAllEntries(more.getEntriesList()).setRewrittenVersion(more.getRewrittenVersion()).build()));
      if (page.hasChunk()) { // of a value that is larger than a page
        ValueChunk chunk = page.getChunk();
        piece = piece.concat(chunk.getData());
        if (piece.size() == chunk.getSizeBytes()) {
          Value value = Value.newBuilder().setMediaType(chunk.getMediaType()).setData(piece).build();
          if (chunk.hasSlot()) {
            slots.put(chunk.getSlot(), value);
          } else { // its page has shown the log, without this entry
            logs.computeIfPresent(chunk.getLog(), (name, log) -> log.toBuilder().addEntries(value).build());
          }
          piece = ByteString.EMPTY;
        }
      }
      request.setPageToken(page.getNextPageToken());
      if (page.getNextPageToken().isEmpty()) {
        version = page.getCheckpoint().getVersion();
        digest = page.getCheckpoint().getDigest();
        uid = page.getCheckpoint().getUid();
        return new Head(slots, logs, page.getCheckpoint(), waiting, pages);
      }
    }
  }
}
