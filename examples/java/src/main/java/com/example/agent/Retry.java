package com.example.agent;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Status;
import io.grpc.StatusException;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;

/** Calls that outlive a daemon that is away, and the reasons of errors. */
final class Retry {
  private static final long PATIENCE_MS = 30_000;
  private static final long MIN_PAUSE_MS = 50;
  private static final long MAX_PAUSE_MS = 1000;
  static final long FINAL = -1;
  private static final Set<Status.Code> PASSING = Set.of(
      Status.Code.UNAVAILABLE, Status.Code.DEADLINE_EXCEEDED, Status.Code.CANCELLED, Status.Code.UNKNOWN);

  private Retry() {}

  /** One attempt of a call. */
  interface Attempt<A> {
    A run() throws StatusException, InterruptedException;
  }

  /**
   * Repeats an attempt until it succeeds, fails for good, or the time is over. A write carries a request id, so the daemon
   * applies it once. The retry policy of the service config stops after five attempts, and repeats no call whose answer
   * has begun to come.
   */
  static <A> A repeat(Attempt<A> attempt) {
    long end = System.currentTimeMillis() + PATIENCE_MS;
    for (int number = 0; ; number++) {
      try {
        return once(attempt);
      } catch (StatusRuntimeException error) {
        long pauseMs = pauseAfterMs(error, number);
        if (pauseMs == FINAL || System.currentTimeMillis() + pauseMs > end) {
          throw error;
        }
        sleep(pauseMs);
      }
    }
  }

  /** Makes one attempt. Every error of a call is a StatusRuntimeException. */
  static <A> A once(Attempt<A> attempt) {
    try {
      return attempt.run();
    } catch (StatusException error) {
      throw error.getStatus().asRuntimeException(error.getTrailers());
    } catch (InterruptedException interrupted) {
      throw new IllegalStateException(interrupted);
    }
  }

  static void sleep(long ms) {
    once(() -> {
      Thread.sleep(ms);
      return null;
    });
  }

  /** Returns for how long to wait before another attempt; FINAL = none can succeed. */
  static long pauseAfterMs(StatusRuntimeException error, int attempt) {
    ErrorInfo why = explain(error);
    String freeInS = why.getReason().equals("NOT_OWNER") ? why.getMetadataOrDefault("free_in_s", "") : "";
    if (!freeInS.isEmpty()) {
      return Math.max((long) (Double.parseDouble(freeInS) * 1000), MIN_PAUSE_MS);
    }
    var told = detail(error, RetryInfo.class).getRetryDelay();
    if (told.getSeconds() > 0 || told.getNanos() > 0) {
      return told.getSeconds() * 1000 + told.getNanos() / 1_000_000;
    }
    if (!PASSING.contains(error.getStatus().getCode()) && !why.getReason().equals("QUEUE_FULL")) {
      return FINAL;
    }
    // Many clients that lost the same daemon do not come back all at once.
    long pauseMs = Math.min(MIN_PAUSE_MS << Math.min(attempt, 5), MAX_PAUSE_MS);
    return (long) (pauseMs * ThreadLocalRandom.current().nextDouble(0.5, 1));
  }

  /**
   * Returns why the daemon refused a call, with the facts that error_reason.proto names for the reason. The reason is
   * empty if the error comes from gRPC itself.
   */
  static ErrorInfo explain(StatusRuntimeException error) {
    ErrorInfo found = detail(error, ErrorInfo.class);
    return found.getDomain().equals("stateward") ? found : ErrorInfo.getDefaultInstance();
  }

  static boolean hasReason(StatusRuntimeException error, String reason) {
    return explain(error).getReason().equals(reason);
  }

  private static <M extends com.google.protobuf.Message> M detail(StatusRuntimeException error, Class<M> kind) {
    var status = StatusProto.fromThrowable(error);
    List<Any> details = status == null ? List.of() : status.getDetailsList();
    try {
      for (Any detail : details) {
        if (detail.is(kind)) {
          return detail.unpack(kind);
        }
      }
    } catch (InvalidProtocolBufferException damaged) {
      throw new IllegalStateException(damaged);
    }
    return com.google.protobuf.Internal.getDefaultInstance(kind);
  }
}
