package com.example.agent;

import com.google.protobuf.Duration;
import com.stateward.v1.*;
import io.grpc.StatusRuntimeException;
import java.util.*;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;

/** What agents do together: leases that are renewed, tools that are called once, and records. */
final class Work {
  private static final long MAX_POLL_MS = 1000;
  private static final int MAX_KEYS = 1000;
  /** A claim lives so long unless it is renewed: as long as others wait if this agent dies. */
  private static final long CLAIM_TERM_S = 10;

  private Work() {}

  /** A lease that is held. `lost` gives why it is lost, as far as this process knows, or null. */
  record Held(long token, String uid, Supplier<StatusRuntimeException> lost) {}

  /**
   * Holds the lease of a thread while the work runs, and renews it three times in each term. Throws LEASE_HELD if it was
   * lost: the work must then save nothing any more.
   */
  static void holding(Client client, String thread, int termSeconds, Consumer<Held> work) {
    var request = AcquireLeaseRequest.newBuilder()
        .setThread(thread).setOptions(Client.newOptions()).setHolder(client.holder)
        .setTerm(Duration.newBuilder().setSeconds(termSeconds)).build();
    var acquired = Retry.repeat(() -> client.leases().acquireLease(request));
    long token = acquired.getLease().getToken();
    String uid = acquired.getReceipt().getUid(); // the next thread of the name may give out the same token
    var loss = new AtomicReference<StatusRuntimeException>();
    var renewals = Executors.newSingleThreadScheduledExecutor();
    var renewal = RenewLeaseRequest.newBuilder().setThread(thread).setLeaseToken(token).setExpectedUid(uid).build();
    long periodMs = termSeconds * 1000L / 3;
    renewals.scheduleAtFixedRate(() -> {
      try {
        Retry.repeat(() -> client.leases().renewLease(renewal));
      } catch (StatusRuntimeException error) {
        loss.set(error);
        renewals.shutdown();
      }
    }, periodMs, periodMs, TimeUnit.MILLISECONDS);
    try {
      work.accept(new Held(token, uid, loss::get));
    } finally {
      renewals.shutdown();
      if (loss.get() != null) {
        throw loss.get();
      }
      var options = WriteOptions.newBuilder().setLeaseToken(token).setExpectedUid(uid);
      var release = ReleaseLeaseRequest.newBuilder().setThread(thread).setOptions(options).build();
      Retry.repeat(() -> client.leases().releaseLease(release));
    }
  }

  /**
   * How a tool is called. Both get the idempotency key, which is the same for all attempts. `check` finds out what became
   * of a call whose agent died, and returns its result, or nothing if the tool has done nothing.
   */
  record Tool(Function<String, Value> call, Function<String, Optional<Value>> check) {}

  /**
   * The result of a tool, and the state in which the effect was: NEW or UNCERTAIN if this call has recorded the result, and
   * DONE if an earlier one had.
   */
  record Called(EffectState state, Value result) {}

  /** Calls a tool at most once. */
  static Called callOnce(Client client, String anchor, String key, Tool tool) {
    BeginEffectResponse begun = begin(client, anchor, key);
    while (begun.getState() == EffectState.EFFECT_STATE_IN_PROGRESS) {
      var retry = begun.getRetryAfter();
      Retry.sleep(Math.min(retry.getSeconds() * 1000 + retry.getNanos() / 1_000_000, MAX_POLL_MS));
      begun = begin(client, anchor, key);
    }
    RecordedEffect recorded = begun.getEffect();
    if (begun.getState() == EffectState.EFFECT_STATE_FAILED) {
      throw new IllegalStateException(key + " has failed: " + recorded.getDetail());
    }
    if (begun.getState() == EffectState.EFFECT_STATE_DONE) {
      return new Called(begun.getState(), recorded.getEffect().getValue());
    }
    var claim = CompleteEffectRequest.newBuilder()
        .setThread(client.thread).setAnchor(anchor).setKey(key).setClaimToken(begun.getClaimToken())
        .setOptions(WriteOptions.newBuilder().setExpectedUid(begun.getReceipt().getUid())).build();
    Value result;
    try (var renewals = new Renewals(client, claim)) {
      if (begun.getReceipt().getDurabilityValue() < begun.getRequiredDurabilityValue()) {
        // A lost machine would lose the claim, and the tool would be called again.
        var wait = WaitDurableRequest.newBuilder()
            .setThread(client.thread).setReceipt(begun.getReceipt())
            .setDurability(begun.getRequiredDurability()).build();
        Retry.repeat(() -> client.threads().waitDurable(wait));
      }
      String idempotencyKey = begun.getIdempotencyKey();
      var checked = begun.getState() == EffectState.EFFECT_STATE_UNCERTAIN
          ? tool.check().apply(idempotencyKey) : Optional.<Value>empty();
      result = checked.orElseGet(() -> {
        renewals.hold();
        return tool.call().apply(idempotencyKey);
      });
    }
    var done = claim.toBuilder().setState(EffectState.EFFECT_STATE_DONE).setValue(result).build();
    Retry.repeat(() -> client.effects().completeEffect(done));
    return new Called(begun.getState(), result);
  }

  /**
   * Renews a claim three times in each term, until it is closed. A renewal that fails is made again with the next one,
   * unless another agent has the claim.
   */
  private static final class Renewals implements AutoCloseable {
    private final Client client;
    private final RenewEffectRequest renewal;
    private final ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor();
    private volatile long sentNs = System.nanoTime(); // the last renewal that succeeded
    private volatile boolean isLost;

    Renewals(Client client, CompleteEffectRequest claim) {
      this.client = client;
      renewal = RenewEffectRequest.newBuilder()
          .setThread(claim.getThread()).setAnchor(claim.getAnchor()).setKey(claim.getKey())
          .setClaimToken(claim.getClaimToken()).setExpectedUid(claim.getOptions().getExpectedUid()).build();
      long periodMs = CLAIM_TERM_S * 1000 / 3;
      timer.scheduleAtFixedRate(() -> {
        try {
          renew();
        } catch (StatusRuntimeException error) {
          if (isLost) {
            timer.shutdown();
          }
        }
      }, periodMs, periodMs, TimeUnit.MILLISECONDS);
    }

    /** Throws CLAIM_LOST if the claim is lost: the tool must then not be called. */
    void hold() {
      if (isLost || System.nanoTime() - sentNs > CLAIM_TERM_S * 1_000_000_000 / 2) {
        renew();
      }
    }

    private void renew() {
      long sent = System.nanoTime();
      try {
        Retry.repeat(() -> client.effects().renewEffect(renewal));
        sentNs = sent;
      } catch (StatusRuntimeException error) {
        isLost = isLost || Retry.hasReason(error, "CLAIM_LOST");
        throw error;
      }
    }

    @Override
    public void close() {
      timer.shutdown();
    }
  }

  /** Claims an effect. Each time it is a new request: with the same id the daemon would give the same answer for ever. */
  private static BeginEffectResponse begin(Client client, String anchor, String key) {
    var request = BeginEffectRequest.newBuilder()
        .setThread(client.thread).setOptions(Client.newOptions()).setAnchor(anchor).setKey(key)
        .setHolder(client.holder).setTerm(Duration.newBuilder().setSeconds(CLAIM_TERM_S)).build();
    return Retry.repeat(() -> client.effects().beginEffect(request));
  }

  /** Writes a record, if it has the expected revision; 0 = it must not exist. */
  static void putRecord(Client client, String key, Value value, long revision) {
    var request = PutRecordsRequest.newBuilder()
        .setThread(client.thread).setOptions(Client.newOptions())
        .addWrites(RecordWrite.newBuilder().setKey(key).setValue(value).setExpectedRevision(revision)).build();
    Retry.repeat(() -> client.records().putRecords(request));
  }

  /** Returns the records with these keys that exist, however many answers they take. */
  static Map<String, StoredRecord> getRecords(Client client, Collection<String> keys) {
    var found = new HashMap<String, StoredRecord>();
    var left = new ArrayList<>(keys);
    while (!left.isEmpty()) {
      var asked = left.subList(0, Math.min(MAX_KEYS, left.size()));
      var request = GetRecordsRequest.newBuilder().setThread(client.thread).addAllKeys(asked).build();
      GetRecordsResponse answer = Retry.repeat(() -> client.records().getRecords(request));
      answer.getRecordsList().forEach(record -> found.put(record.getKey(), record));
      asked.clear(); // they leave the list
      left.addAll(0, answer.getRestList());
    }
    return found;
  }

  /** Lists the keys with a prefix, in all pages. A page may be empty and not the last one. */
  static List<String> listKeys(Client client, String prefix) {
    var keys = new ArrayList<String>();
    var request = ListRecordsRequest.newBuilder().setThread(client.thread).setPrefix(prefix).setWithoutValues(true);
    do {
      ListRecordsResponse page = Retry.repeat(() -> client.records().listRecords(request.build()));
      page.getRecordsList().forEach(record -> keys.add(record.getKey()));
      request.setPageToken(page.getNextPageToken());
    } while (!request.getPageToken().isEmpty());
    return keys;
  }
}
