// A writer's stream: the fastest way to save many versions.
import { newOptions, withOptions, type Thread } from "./client.js";
import type { Edit } from "./generated/stateward/v1/Edit.js";
import type { WriteResponse__Output } from "./generated/stateward/v1/WriteResponse.js";
import type { WriterSave } from "./generated/stateward/v1/WriterSave.js";
import { explain, refusal, repeat } from "./retry.js";

type Call = ReturnType<Thread["writers"]["Write"]>;
type Frame = WriterSave & { edit: Edit };

/**
 * Saves each edit as one version. The edits must fit any state. The stream holds the lease, so frames are sent before the
 * answers to earlier ones come. Returns the first and the last version.
 */
export async function stream(thread: Thread, edits: Edit[]): Promise<{ first: number; last: string }> {
  const writer = new Writer(thread, edits);
  await repeat(() => writer.run());
  return { first: writer.first!, last: thread.version };
}

/** The frames of a stream, across all its connections. */
class Writer {
  first?: number;
  readonly #opening;
  #token?: string;
  #number = 0; // of the last frame
  #sent: Frame[] = []; // not answered yet
  #refused: Edit[]; // to be sent anew

  constructor(readonly thread: Thread, edits: Edit[]) {
    const options = newOptions({ expectedUid: thread.uid });
    this.#opening = { thread: thread.name, options, holder: thread.holder, term: { seconds: 1 } };
    this.#refused = edits;
  }

  /** Runs one connection, until every frame is answered. */
  async run(): Promise<void> {
    const call = this.thread.writers.Write();
    try {
      call.write({ open: this.#opening }); // the same lease as before
      for await (const answer of call as AsyncIterable<WriteResponse__Output>) {
        this.#take(call, answer);
        if (!this.#sent.length && !this.#refused.length) call.end();
      } // the daemon has taken the lease back when it ends the stream
    } finally {
      call.cancel(); // a stream that was not ended keeps its lease for a term
    }
  }

  #take(call: Call, { opened, saved, refused, reset }: WriteResponse__Output): void {
    if (opened) {
      const { token } = opened.lease!;
      if (this.#token && this.#token !== token) throw new Error("the lease was lost: another writer may have saved");
      this.#token = token;
      this.#opening.options.expectedUid = opened.receipt!.uid;
      this.first ??= Number(opened.lastVersion) + 1;
      // Nothing that follows a refused frame was saved. Else what was not answered is sent again, the same.
      if (this.#refused.length) this.#refused.push(...this.#sent.splice(0).map(({ edit }) => edit));
      for (const { edit, ...save } of this.#sent) call.write({ save });
      this.#sendAnew(call, Number(opened.lastVersion));
    } else if (saved) { // frames are answered in order
      this.#sent.shift();
      this.thread.remember(saved.save!);
    } else if (refused) {
      const error = refusal(refused.status!);
      if (!["VERSION_MISMATCH", "WRITER_ABORTED"].includes(explain(error).reason)) throw error;
      if (!this.#refused.length) call.write({ reset: {} }); // until the reset, the daemon refuses every frame
      this.#refused.push(this.#sent.shift()!.edit);
    } else if (reset) {
      this.#sendAnew(call, Number(reset.lastVersion));
    }
  }

  /** Sends the refused edits as new frames on top of a version. */
  #sendAnew(call: Call, version: number): void {
    for (const edit of this.#refused.splice(0)) {
      const fields = { leaseToken: this.#token, expectedDigest: undefined, expectedVersion: version++ };
      const next = { ...withOptions(this.thread.next(edit), fields), thread: "" };
      const save = { frame: ++this.#number, save: next };
      this.#sent.push({ ...save, edit });
      call.write({ save });
    }
  }
}
