/**
 * How LangGraph's names lie in Stateward's: threads, checkpoint namespaces, checkpoint ids and channels.
 *
 * A name of Stateward has 1 to 1,024 bytes of UTF-8 without control characters. A text that is such a name stays as it
 * is. Any other text becomes `~%` and the text, in which `%XX` is a byte of a character that a name cannot have. If that
 * is too long, it becomes `~#`, the SHA-256 of the text, and the text's beginning; the text is then stored beside what it
 * names. A text that begins with `~%` or `~#`, or ends as the name of an orphan, never stays as it is. These are the
 * names of the saver for Python.
 */
import { createHash } from "node:crypto";

const BYTES_MAX = 1024;
const BEGIN_MAX = 32;
const ESCAPED = "~%";
const HASHED = "~#";
export const MAIN = "main";
const NAMESPACE = "ns/";
const UNNAMED = /[\u0000-\u001f\u007f-\u009f\p{Surrogate}]|^~[%#]|^-?$|@@[0-9.]+$/u;
const FORBIDDEN = /[%@\u0000-\u001f\u007f-\u009f\p{Surrogate}]/gu;

/** The name of a text, of at most `bytesMax` bytes. Different texts have different names. */
export function nameFor(text: string, bytesMax = BYTES_MAX): string {
  if (!UNNAMED.test(text) && Buffer.byteLength(text) <= bytesMax) return text;
  const name = ESCAPED + escape(text);
  if (Buffer.byteLength(name) <= bytesMax) return name;
  const digest = createHash("sha256").update(encode(text)).digest("hex");
  return `${HASHED}${digest} ${escape([...text].slice(0, BEGIN_MAX).join(""))}`;
}

/** Whether a name is that of an orphan. No adapter makes such a thread. */
export function isOrphans(name: string): boolean {
  return /^.+@@[0-9]+(\.[0-9]+)?$/s.test(name);
}

/** The text of a name; undefined = the name has its digest only. */
export function textOf(name: string): string | undefined {
  if (name.startsWith(HASHED)) return undefined;
  return name.startsWith(ESCAPED) ? unescape(name.slice(ESCAPED.length)) : name;
}

/** The branch of a checkpoint namespace. The root's is main. */
export function branchOf(ns = ""): string {
  if (!ns) return MAIN;
  return nameFor(ns === MAIN || ns.startsWith(NAMESPACE) ? NAMESPACE + ns : ns);
}

/** The reverse of `branchOf`; undefined = the branch has only the digest of its namespace. */
export function namespaceOf(branch: string): string | undefined {
  if (branch === MAIN) return "";
  const text = textOf(branch);
  return text?.startsWith(NAMESPACE) ? text.slice(NAMESPACE.length) : text;
}

/** The name of a channel. That of its slot or log is `channel/` and this name. */
export function channelName(channel: string): string {
  return nameFor(channel, BYTES_MAX - "channel/".length);
}

/** A text in which nothing is left that a name, or UTF-8, cannot have. */
export function escape(text: string): string {
  return text.replace(FORBIDDEN, (found) =>
    [...encode(found)].map((byte) => `%${byte.toString(16).toUpperCase().padStart(2, "0")}`).join(""));
}

/** The reverse of `escape`. */
export function unescape(text: string): string {
  const bytes = Buffer.from(text.replace(/%([0-9A-F]{2})|[^%]+/g, (found, hex) => hex ?? Buffer.from(found).toString("hex")), "hex");
  return decode(bytes);
}

/** UTF-8, in which a lone surrogate is three bytes, as in Python's "surrogatepass". */
export function encode(text: string): Buffer {
  return Buffer.concat([...text].map((each) => {
    const code = each.codePointAt(0)!;
    if (code < 0xd800 || code > 0xdfff) return Buffer.from(each);
    return Buffer.from([0xe0 | (code >> 12), 0x80 | ((code >> 6) & 0x3f), 0x80 | (code & 0x3f)]);
  }));
}

/** The reverse of `encode`. */
export function decode(bytes: Buffer): string {
  let text = "";
  let start = 0;
  for (let at = 0; at < bytes.length; at++) {
    if (bytes[at] !== 0xed || bytes[at + 1]! < 0xa0) continue;
    const code = 0xd000 | ((bytes[at + 1]! & 0x3f) << 6) | (bytes[at + 2]! & 0x3f);
    text += bytes.toString("utf8", start, at) + String.fromCharCode(code);
    start = at + 3;
    at += 2;
  }
  return text + bytes.toString("utf8", start);
}
