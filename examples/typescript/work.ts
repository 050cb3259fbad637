// What agents do together: leases that are renewed, tools that are called once, and records.
import { setTimeout as sleep } from "node:timers/promises";

import { effects, leases, newOptions, records, threads, type Thread } from "./client.js";
import { explain, isCallError } from "./retry.js";
import type { BeginEffectResponse__Output } from "./generated/stateward/v1/BeginEffectResponse.js";
import type { ListRecordsRequest } from "./generated/stateward/v1/ListRecordsRequest.js";
import type { RenewEffectRequest } from "./generated/stateward/v1/RenewEffectRequest.js";
import type { StoredRecord__Output } from "./generated/stateward/v1/StoredRecord.js";
import type { Value } from "./generated/stateward/v1/Value.js";

const MAX_POLL_MS = 1000;
const MAX_KEYS = 1000;
/** A claim lives so long unless it is renewed: as long as others wait if this agent dies. */
const CLAIM_TERM_S = 10;

/** A lease that is held; `lost` ends when it is known to be lost, with the error as the reason. */
export interface Lease {
  token: string;
  /** Of the thread: the next thread of its name may give out the same token. */
  uid: string;
  lost: AbortSignal;
}

/**
 * Holds the lease of a thread while the work runs, and renews it three times in each term. Throws LEASE_HELD if it was lost:
 * the work must then save nothing any more.
 */
export async function holding<A>(
  thread: Thread, name: string, termS: number, work: (lease: Lease) => Promise<A>,
): Promise<A> {
  const request = { thread: name, options: newOptions(), holder: thread.holder, term: { seconds: termS } };
  const { lease, receipt } = await thread.call(leases.AcquireLease, request);
  const { token } = lease!;
  const { uid } = receipt!;
  const held = { leaseToken: token, expectedUid: uid };
  const loss = new AbortController();
  const renewals = setInterval(async () => {
    try {
      await thread.call(leases.RenewLease, { thread: name, ...held });
    } catch (error) {
      clearInterval(renewals);
      loss.abort(error);
    }
  }, (termS * 1000) / 3);
  try {
    return await work({ token, uid, lost: loss.signal });
  } finally {
    clearInterval(renewals);
    if (loss.signal.aborted) throw loss.signal.reason;
    await thread.call(leases.ReleaseLease, { thread: name, options: held });
  }
}

/**
 * How a tool is called. Both get the idempotency key, which is the same for all attempts. `check` finds out what became of a
 * call whose agent died, and returns its result, or undefined if the tool has done nothing.
 */
export interface Tool {
  call(idempotencyKey: string): Promise<Value>;
  check(idempotencyKey: string): Promise<Value | undefined>;
}

/**
 * Calls a tool at most once. Returns the result, and the state in which the effect was: NEW or UNCERTAIN if this call has
 * recorded the result, and DONE if an earlier one had.
 */
export async function callOnce(
  thread: Thread, anchor: string, key: string, tool: Tool,
): Promise<{ state: string; result: Value }> {
  const effect = { thread: thread.name, anchor, key };
  let begun: BeginEffectResponse__Output;
  for (;;) { // each time a new request: with the same id the daemon would give the same answer for ever
    const term = { seconds: CLAIM_TERM_S };
    const request = { ...effect, options: newOptions(), holder: thread.holder, term };
    begun = await thread.call(effects.BeginEffect, request);
    if (begun.state !== "EFFECT_STATE_IN_PROGRESS") break;
    const { seconds = 0, nanos = 0 } = begun.retryAfter ?? {};
    await sleep(Math.min(Number(seconds) * 1000 + nanos / 1e6, MAX_POLL_MS));
  }
  const state = begun.state.replace("EFFECT_STATE_", "");
  const recorded = begun.effect!;
  if (state === "FAILED") throw new Error(`${key} has failed: ${recorded.detail}`);
  if (state === "DONE") return { state, result: recorded.effect!.value! };
  const receipt = begun.receipt!;
  const claim = { ...effect, claimToken: begun.claimToken };
  const value = await renewing(thread, { ...claim, expectedUid: receipt.uid }, async (hold) => {
    if (receipt.durability !== begun.requiredDurability) {
      // A lost machine would lose the claim, and the tool would be called again.
      await thread.call(threads.WaitDurable, { thread: thread.name, receipt, durability: begun.requiredDurability });
    }
    const checked = state === "UNCERTAIN" ? await tool.check(begun.idempotencyKey) : undefined;
    if (checked) return checked;
    await hold();
    return tool.call(begun.idempotencyKey);
  });
  const options = { expectedUid: receipt.uid };
  await thread.call(effects.CompleteEffect, { ...claim, options, state: "EFFECT_STATE_DONE", value });
  return { state, result: value };
}

/**
 * Renews a claim three times in each term while the work runs. A renewal that fails is made again with the next one, unless
 * another agent has the claim. `hold` throws CLAIM_LOST if the claim is lost: the tool must then not be called.
 */
async function renewing<A>(
  thread: Thread, claim: RenewEffectRequest, work: (hold: () => Promise<void>) => Promise<A>,
): Promise<A> {
  let renewedAt: number | undefined = performance.now(); // when the last one was sent that succeeded; undefined = lost
  const renew = async (): Promise<void> => {
    const sentAt = performance.now();
    try {
      await thread.call(effects.RenewEffect, claim);
      renewedAt = sentAt;
    } catch (error) {
      if (isCallError(error) && explain(error).reason === "CLAIM_LOST") {
        clearInterval(renewals);
        renewedAt = undefined;
      }
      throw error;
    }
  };
  const renewals = setInterval(() => renew().catch(() => {}), (CLAIM_TERM_S * 1000) / 3);
  try {
    return await work(async () => {
      if (renewedAt === undefined || performance.now() - renewedAt > (CLAIM_TERM_S * 1000) / 2) await renew();
    });
  } finally {
    clearInterval(renewals);
  }
}

/** Writes a record, if it has the expected revision; 0 = it must not exist. */
export async function putRecord(thread: Thread, key: string, value: Value, revision: string | number): Promise<void> {
  const writes = [{ key, value, expectedRevision: revision }];
  await thread.call(records.PutRecords, { thread: thread.name, options: newOptions(), writes });
}

/** Returns the records with these keys that exist, however many answers they take. */
export async function getRecords(thread: Thread, ...keys: string[]): Promise<Map<string, StoredRecord__Output>> {
  const found = new Map<string, StoredRecord__Output>();
  while (keys.length) {
    const asked = keys.slice(0, MAX_KEYS);
    const answer = await thread.call(records.GetRecords, { thread: thread.name, keys: asked });
    for (const record of answer.records) found.set(record.key, record);
    keys = [...answer.rest, ...keys.slice(MAX_KEYS)];
  }
  return found;
}

/** Lists the keys with a prefix, in all pages. A page may be empty and not the last one. */
export async function listKeys(thread: Thread, prefix: string): Promise<string[]> {
  const keys: string[] = [];
  const request: ListRecordsRequest = { thread: thread.name, prefix, withoutValues: true };
  for (;;) {
    const page = await thread.call(records.ListRecords, request);
    keys.push(...page.records.map(({ key }) => key));
    if (!page.nextPageToken) return keys;
    request.pageToken = page.nextPageToken;
  }
}
