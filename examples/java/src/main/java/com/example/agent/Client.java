package com.example.agent;

import com.google.gson.Gson;
import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import com.stateward.v1.*;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.*;

/**
 * What every client needs beside the generated stubs: a channel, request ids, the reasons of errors, and pages. It also
 * remembers the version of the thread that the agent builds on.
 */
final class Client {
  final CheckpointServiceGrpc.CheckpointServiceBlockingStub checkpoints;
  final EffectServiceGrpc.EffectServiceBlockingStub effects;
  final LeaseServiceGrpc.LeaseServiceBlockingStub leases;
  final SignalServiceGrpc.SignalServiceBlockingStub signals;
  final ManagedChannel channel;
  final String thread;
  final Holder holder = Holder.newBuilder().setName("agent").setIncarnation(newId()).build();
  long version;
  ByteString digest = ByteString.EMPTY;

  /** Opens a channel with the retry policy of the contract. It connects with the first call. */
  @SuppressWarnings("unchecked")
  Client(String target, String thread) throws IOException {
    Map<String, ?> policy = new Gson().fromJson(Files.readString(Path.of("proto/service_config.json")), Map.class);
    channel = Grpc.newChannelBuilder(target, InsecureChannelCredentials.create())
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
    checkpoints = CheckpointServiceGrpc.newBlockingStub(channel);
    effects = EffectServiceGrpc.newBlockingStub(channel);
    leases = LeaseServiceGrpc.newBlockingStub(channel);
    signals = SignalServiceGrpc.newBlockingStub(channel);
    this.thread = thread;
  }

  /** Makes a request id. All attempts of a request have the same one. */
  static String newId() {
    return UUID.randomUUID().toString();
  }

  /** Makes a request with these edits, which the daemon saves only on top of the version that the agent knows. */
  SaveRequest.Builder next(Edit... edits) {
    return SaveRequest.newBuilder()
        .setThread(thread).setRequestId(newId()).setExpectedVersion(version).setExpectedDigest(digest)
        .setDiff(Diff.newBuilder().addAllEdits(List.of(edits)));
  }

  /** Saves, and remembers the new head. */
  SaveResponse save(SaveRequest.Builder request) {
    SaveResponse saved = checkpoints.save(request.build());
    version = saved.getVersion();
    digest = saved.getDigest();
    return saved;
  }

  /** Makes a save that the daemon must refuse, and returns why it did. */
  ErrorInfo refusalOf(SaveRequest.Builder request) {
    try {
      throw new IllegalStateException("saved as version " + save(request).getVersion());
    } catch (StatusRuntimeException error) {
      return explain(error);
    }
  }

  /**
   * Returns why the daemon refused a call, with the facts that error_reason.proto names for the reason. The reason is
   * empty if the error comes from gRPC itself.
   */
  static ErrorInfo explain(StatusRuntimeException error) {
    try {
      for (var detail : StatusProto.fromThrowable(error).getDetailsList()) {
        if (detail.is(ErrorInfo.class) && detail.unpack(ErrorInfo.class).getDomain().equals("stateward")) {
          return detail.unpack(ErrorInfo.class);
        }
      }
    } catch (InvalidProtocolBufferException damaged) {
      throw new IllegalStateException(damaged);
    }
    return ErrorInfo.getDefaultInstance();
  }

  /** A state that was read, the signals that wait for the agent, and the number of pages. */
  record Head(Map<String, Value> slots, Map<String, Log.Builder> logs, List<Signal> signals, int pages) {}

  /** Reads the head, joins its pages, and remembers its version. */
  Head hydrate() {
    var slots = new HashMap<String, Value>();
    var logs = new HashMap<String, Log.Builder>();
    var waiting = new ArrayList<Signal>();
    var request = HydrateRequest.newBuilder().setThread(thread).setIncludeSignals(true);
    var piece = ByteString.EMPTY;
    for (int pages = 1; ; pages++) {
      HydrateResponse page = checkpoints.hydrate(request.build());
      waiting.addAll(page.getSignalsList());
      slots.putAll(page.getState().getSlotsMap());
      page.getState().getLogsMap().forEach((name, part) -> {
        if (logs.containsKey(name)) {
          logs.get(name).addAllEntries(part.getEntriesList());
        } else {
          logs.put(name, part.toBuilder());
        }
      });
      if (page.hasChunk()) { // of a value that is larger than a page
        ValueChunk chunk = page.getChunk();
        piece = piece.concat(chunk.getData());
        if (piece.size() == chunk.getSizeBytes()) {
          Value value = Value.newBuilder().setMediaType(chunk.getMediaType()).setData(piece).build();
          if (chunk.hasSlot()) {
            slots.put(chunk.getSlot(), value);
          } else { // its page has shown the log, without this entry
            logs.get(chunk.getLog()).addEntries(value);
          }
          piece = ByteString.EMPTY;
        }
      }
      request.setPageToken(page.getNextPageToken());
      if (page.getNextPageToken().isEmpty()) {
        version = page.getCheckpoint().getVersion();
        digest = page.getCheckpoint().getDigest();
        return new Head(slots, logs, waiting, pages);
      }
    }
  }
}
