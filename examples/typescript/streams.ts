// Streams that go on after a break: watches, and blobs in both directions.
import { createHash } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import type { Thread } from "./client.js";
import type { BlobRef, BlobRef__Output } from "./generated/stateward/v1/BlobRef.js";
import type { JournalEvent__Output } from "./generated/stateward/v1/JournalEvent.js";
import type { ReadBlobResponse__Output } from "./generated/stateward/v1/ReadBlobResponse.js";
import type { WatchResponse__Output } from "./generated/stateward/v1/WatchResponse.js";
import { pauseAfter, repeat } from "./retry.js";

const MESSAGE_BYTES = 1 << 20;

/** Yields the events of a thread after a sequence. A watch that breaks goes on after the last cursor. */
export async function* watch(thread: Thread, afterSequence: number): AsyncGenerator<JournalEvent__Output> {
  let afterCursor = "";
  for (let attempt = 0; ; attempt++) {
    const stream = thread.watches.Watch({ thread: thread.name, afterSequence, afterCursor });
    try {
      for await (const message of stream as AsyncIterable<WatchResponse__Output>) {
        yield* message.events;
        afterCursor = message.cursor; // of every message, also of one without events
        attempt = 0;
      }
      return; // the thread was deleted
    } catch (error) {
      const pauseMs = pauseAfter(error, attempt);
      if (pauseMs === undefined) throw error;
      await sleep(pauseMs);
    } finally {
      stream.cancel();
    }
  }
}

/** Writes a blob. One that breaks off is written again from its first byte. A save then names the reference. */
export function writeBlob(thread: Thread, data: Uint8Array): Promise<BlobRef__Output> {
  const sha256 = createHash("sha256").update(data).digest();
  return repeat(
    () =>
      new Promise((resolve, reject) => {
        const stream = thread.blobs.WriteBlob((error, written) => (error ? reject(error) : resolve(written!.blob!)));
        stream.on("error", () => {}); // the callback gets it, too
        stream.write({ begin: { thread: thread.name, sha256, sizeBytes: data.length } });
        for (let at = 0; at < data.length; at += MESSAGE_BYTES) {
          stream.write({ data: data.subarray(at, at + MESSAGE_BYTES) });
        }
        stream.end();
      }),
  );
}

/** Reads a blob. After a break it goes on at the next byte. */
export async function readBlob(thread: Thread, blob: BlobRef): Promise<Buffer> {
  const pieces: Uint8Array[] = [];
  let offset = 0;
  await repeat(async () => {
    const stream = thread.blobs.ReadBlob({ thread: thread.name, blob, offset });
    for await (const { data } of stream as AsyncIterable<ReadBlobResponse__Output>) {
      pieces.push(data);
      offset += data.length;
    }
  });
  return Buffer.concat(pieces);
}
