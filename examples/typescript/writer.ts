// A writer's stream: the fastest way to save many versions.
import { newId, type Thread } from "./client.js";
import type { Edit } from "./generated/stateward/v1/Edit.js";
import type { WriteResponse__Output } from "./generated/stateward/v1/WriteResponse.js";

/**
 * Saves each edit as one version. The stream holds the lease, so frames are sent before the answers to earlier ones
 * come. Returns the first and the last version.
 */
export async function stream(thread: Thread, frames: Edit[]): Promise<{ first: number; last: string }> {
  const call = thread.write();
  const answers: AsyncIterator<WriteResponse__Output> = call[Symbol.asyncIterator]();
  call.write({ open: { thread: thread.name, holder: thread.holder, term: { seconds: 1 }, requestId: newId() } });
  const { opened } = (await answers.next()).value;
  for (const [index, edit] of frames.entries()) {
    const fields = { thread: "", leaseToken: opened.lease.token, expectedDigest: undefined };
    const save = { ...thread.next(edit), ...fields, expectedVersion: Number(opened.lastVersion) + index };
    call.write({ save: { frame: index + 1, save } });
  }
  for (const _ of frames) {
    const { saved, refused } = (await answers.next()).value;
    if (refused) throw new Error(`${refused.reasonName}: ${refused.message}`);
    thread.version = saved.save.version;
    thread.digest = saved.save.digest;
  }
  call.end();
  await answers.next(); // the daemon has taken the lease back when it ends the stream
  return { first: Number(opened.lastVersion) + 1, last: thread.version };
}
