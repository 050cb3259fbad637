/** The danger: pages that are joined wrongly, or not at all. */
import { expect, it } from "vitest";

import type { Connection } from "../src/connection.js";
import { readPages } from "../src/pages.js";

const ENTRIES = 200_000; // a page of 3 MiB has room for them if they are small

it("joins logs with more entries than a call takes arguments", async () => {
  const entries = Array.from({ length: ENTRIES }, () => ({ media_type: "", data: Buffer.of(1), content: "data" }));
  const answers = ["more", ""].map((next_page_token) => {
    return { state: { slots: {}, logs: { log: { entries: entries.slice() } } }, effects: [], next_page_token };
  });
  const connection = { hydrate: async () => answers.shift() } as unknown as Connection;
  const { logs } = await readPages(connection, { thread: "t" });
  expect(logs.log!.entries.length).toBe(2 * ENTRIES);
});
