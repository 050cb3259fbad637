// An agent that keeps its state in Stateward. Its steps are those of ../agent.md.
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";

import { Thread, add, binary, newOptions, set, signals, text, withOptions } from "./client.js";
import { conform } from "./conformance.js";
import { explain } from "./retry.js";
import { callOnce, holding } from "./work.js";
import { stream } from "./writer.js";

async function begin(thread: Thread): Promise<void> {
  console.log("created version", (await thread.save(thread.next(set("goal", text("a room in Paris"))))).version);
  console.log("saved version", (await thread.save(thread.next(add("messages", text("hello"))))).version);

  const old = { expectedVersion: 1, expectedDigest: undefined };
  const late = withOptions(thread.next(add("messages", text("too late"))), old);
  const conflict = await thread.save(late).catch(explain);
  if ("reason" in conflict) console.log(`conflict ${conflict.reason} at version ${conflict.facts.current_version}`);

  // A conflict is resolved on the newest state: read it, make the change again, save again.
  const { logs } = await thread.hydrate();
  const again = thread.next(add("messages", text(`message ${logs.messages!.entries.length}`)));
  console.log("resolved as version", (await thread.save(again)).version);
  const replay = await thread.save(again);
  if (replay.receipt!.replayed) console.log("replayed version", replay.version);

  await holding(thread, thread.name, 60, async ({ token }) => {
    const refused = await thread.save(thread.next(set("lease", text("free")))).catch(explain);
    if ("reason" in refused) console.log("refused", refused.reason);
    const held = await thread.save(withOptions(thread.next(set("lease", text("held"))), { leaseToken: token }));
    console.log("leased version", held.version);
  });

  const frames = Array.from({ length: 10 }, (_, index) => add("messages", text(`frame ${index + 1}`)));
  const { first, last } = await stream(thread, frames);
  console.log(`streamed versions ${first} to ${last}`);

  await pay(thread);

  const digits = (number: number): string => String(number).padStart(8, "0");
  const document = Buffer.from(Array.from({ length: 1 << 19 }, (_, number) => digits(number)).join(""));
  const pages = Array.from({ length: 32 }, (_, number) => Buffer.from(digits(number).repeat(8192)));
  const large = thread.next(set("document", binary(document)), add("pages", ...pages.map(binary)));
  const bytes = document.length + Buffer.concat(pages).length;
  console.log(`wrote ${bytes} bytes as version`, (await thread.save(large)).version);

  const asking = { waitId: "approve-room", question: { prompt: "Book the room?" } };
  const waiting = { ...thread.next(), ...asking, status: "WORK_STATUS_WAITING" } as const;
  console.log("waiting at version", (await thread.save(waiting)).version);
  setInterval(() => {}, 1 << 30); // until it is killed
}

/** Pays unless an earlier run has paid. */
async function pay(thread: Thread): Promise<void> {
  const { state, result } = await callOnce(thread, "booking", "pay", {
    call: async (_idempotencyKey) => text(STATEWARD_BANK ? await readFile(STATEWARD_BANK, "utf8") : "receipt 17"),
    check: async (_idempotencyKey) => undefined, // here an agent asks its bank whether it has paid, and above it calls it
  });
  console.log(state === "NEW" ? "effect NEW: paid" : `effect ${state}: ${result.data}`);
}

async function answer(thread: Thread): Promise<void> {
  const signal = { name: "approve", payload: text("yes"), sender: "ana", waitId: "approve-room" };
  await thread.call(signals.SendSignal, { thread: thread.name, options: newOptions(), ...signal });
  console.log("answered approve-room");
}

async function resume(thread: Thread): Promise<void> {
  const { slots, logs, pages, signals: waiting } = await thread.hydrate();
  const all = Buffer.concat([slots.document!, ...logs.pages!.entries].map((value) => value.data!));
  const sha256 = createHash("sha256").update(all).digest("hex");
  console.log(`hydrated version ${thread.version} in ${pages} pages: ${all.length} bytes, sha256 ${sha256}`);
  await pay(thread);
  const answers = waiting.filter((signal) => signal.waitId === "approve-room");
  for (const { payload, sender } of answers) console.log(`answer ${payload!.data} from ${sender}`);
  const ackSignals = answers.map((signal) => signal.signalId);
  const booked = { ...thread.next(add("messages", text("booked"))), ackSignals };
  const completed = await thread.save({ ...booked, status: "WORK_STATUS_COMPLETED" });
  console.log("completed version", completed.version);
}

async function count(thread: Thread): Promise<void> {
  let replayed = 0;
  let counted: string | undefined;
  for (let number = 1; number <= 400; number++) {
    const any = { thread: `${thread.name}-count`, options: newOptions() };
    const saved = await thread.save({ ...thread.next({ addNumber: { slot: "count", delta: 1 } }), ...any });
    counted = saved.numbers.count;
    if (saved.receipt!.replayed) replayed++;
    if (number % 100 === 0) console.log("saved", number);
  }
  console.log(`counted ${counted}, replayed ${replayed}`);
}

const { STATEWARD_TARGET = "", STATEWARD_THREAD = "example-typescript", STATEWARD_BANK } = process.env;
const phases: Record<string, (thread: Thread) => Promise<void>> = { begin, answer, resume, count };
const phase = process.argv[2] ?? "";
if (phases[phase]) await phases[phase](new Thread(STATEWARD_TARGET, STATEWARD_THREAD));
else if (phase.includes("/")) process.exitCode = await conform(STATEWARD_TARGET, phase); // of `stateward conformance`
else {
  console.error("usage: agent begin|answer|resume|count");
  process.exitCode = 1;
}
