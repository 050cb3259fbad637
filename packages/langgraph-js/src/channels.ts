/**
 * How the channels of a checkpoint lie in a state, and the edits that lead from one checkpoint's channels to another's.
 *
 * A channel whose value is an array becomes a log of its elements, so a step that adds a message sends that message.
 * Any other value becomes a slot. Values are what LangGraph's serializer makes of them; the serializer's type stands in
 * the media type. Elements are compared as bytes, so an element that was changed in place is found.
 */
import type { SerializerProtocol } from "@langchain/langgraph-checkpoint";

import type { Edit } from "./generated/stateward/v1/Edit.js";
import type { State__Output } from "./generated/stateward/v1/State.js";
import type { Value, Value__Output } from "./generated/stateward/v1/Value.js";
import { Guarded } from "./guarded.js";
import { channelName, textOf } from "./names.js";

const CHANNEL = "channel/";
const MEDIA_TYPE = "application/x-langgraph-js; type=";

/** A value as the serializer made it. */
export interface Piece {
  kind: string;
  data: Uint8Array;
}

/** A channel as it is stored: a slot, or a log that begins at index `first`; undefined = the index is unknown. */
export type Stored = { piece: Piece } | { pieces: Piece[]; first: number | undefined };
/** By their names (see `names.ts`). */
export type Channels = ReadonlyMap<string, Stored>;

export async function dump(serde: SerializerProtocol, value: unknown): Promise<Piece> {
  const [kind, data] = await serde.dumpsTyped(value);
  return { kind, data };
}

export function load(serde: SerializerProtocol, piece: Piece): Promise<any> {
  return serde.loadsTyped(piece.kind, piece.data);
}

/** Throws TypeNotAllowedError for a value that is sent and could not be loaded again. */
export function checked(serde: SerializerProtocol, piece: Piece): Piece {
  if (serde instanceof Guarded) serde.check(piece.kind, piece.data);
  return piece;
}

export function toValue(piece: Piece): Value {
  return { media_type: MEDIA_TYPE + piece.kind, data: piece.data as Buffer };
}

/** The reverse of `toValue`. Throws for a value that something else wrote. */
export function fromValue(value: Value__Output | null): Piece {
  if (!value?.media_type.startsWith(MEDIA_TYPE)) {
    throw new Error(`a value has media type "${value?.media_type}"; the saver for LangGraph.js did not write it`);
  }
  // A copy: gRPC's is a Buffer, which is not what was stored, and a view of the whole message.
  return { kind: value.media_type.slice(MEDIA_TYPE.length), data: new Uint8Array(value.data ?? []) };
}

export function readChannels({ slots, logs }: Pick<State__Output, "slots" | "logs">): Channels {
  const found = new Map<string, Stored>();
  for (const [name, value] of Object.entries(slots)) {
    if (name.startsWith(CHANNEL)) found.set(name.slice(CHANNEL.length), { piece: fromValue(value) });
  }
  for (const [name, log] of Object.entries(logs)) {
    const stored = { pieces: log.entries.map(fromValue), first: log.first_index ?? 0 };
    if (name.startsWith(CHANNEL)) found.set(name.slice(CHANNEL.length), stored);
  }
  return found;
}

/** The values of channels. `known`: the channels of the checkpoint, for names that have only a digest. */
export async function loadChannels(
  serde: SerializerProtocol, channels: Channels, known: string[],
): Promise<Record<string, unknown>> {
  const find = (name: string) => textOf(name) ?? known.find((each) => channelName(each) === name) ?? name;
  const loading = [...channels].map(async ([name, stored]) => [
    find(name),
    "piece" in stored ? await load(serde, stored.piece) : await Promise.all(stored.pieces.map((each) => load(serde, each))),
  ]);
  return Object.fromEntries(await Promise.all(loading));
}

/** Collects the edits from the channels of one checkpoint to those of another. */
export class Edits {
  readonly edits: Edit[] = [];
  readonly channels = new Map<string, Stored>();

  /** `isNew`: `old` is the empty state, so no log of any name was there before. */
  constructor(
    private readonly serde: SerializerProtocol,
    private readonly old: Channels,
    private readonly isNew: boolean,
  ) {}

  /** Whether the parent has a value of the channel. */
  has(channel: string): boolean {
    return this.old.has(channelName(channel));
  }

  keep(channel: string): void {
    const name = channelName(channel);
    this.channels.set(name, this.old.get(name)!);
  }

  async put(name: string, value: unknown): Promise<void> {
    const channel = channelName(name);
    const old = this.old.get(channel);
    const isLog = Array.isArray(value) && (value.length > 0 || (old && "pieces" in old));
    this.channels.set(channel, isLog ? await this.#putLog(channel, value, old) : await this.#putSlot(channel, value, old));
  }

  /** Removes the channels that were neither kept nor put. */
  finish(): void {
    for (const [channel, stored] of this.old) if (!this.channels.has(channel)) this.#remove(channel, stored);
  }

  async #putSlot(channel: string, value: unknown, old: Stored | undefined): Promise<Stored> {
    const piece = await dump(this.serde, value);
    if (old && "piece" in old && isEqual(old.piece, piece)) return old;
    if (old && "pieces" in old) this.#remove(channel, old);
    this.edits.push({ set_slot: { slot: CHANNEL + channel, value: toValue(checked(this.serde, piece)) } });
    return { piece };
  }

  async #putLog(channel: string, value: unknown[], old: Stored | undefined): Promise<Stored> {
    const log = CHANNEL + channel;
    const pieces = await Promise.all(Array.from(value, (each) => dump(this.serde, each)));
    if (old && "piece" in old) this.#remove(channel, old);
    const known = old && "pieces" in old ? old : { pieces: [], first: this.isNew ? 0 : undefined };
    let kept = 0;
    while (kept < pieces.length && kept < known.pieces.length && isEqual(pieces[kept]!, known.pieces[kept]!)) kept++;
    const at = known.first === undefined ? undefined : known.first + kept;
    if (kept < known.pieces.length) this.edits.push({ trim_log: { log, from_index: at } });
    const entries = pieces.slice(kept).map((each) => toValue(checked(this.serde, each)));
    if (entries.length > 0) this.edits.push({ append: { log, entries, at_index: at } });
    return { pieces, first: known.first };
  }

  #remove(channel: string, stored: Stored): void {
    const name = CHANNEL + channel;
    this.edits.push("piece" in stored ? { delete_slot: { slot: name } } : { delete_log: { log: name } });
  }
}

function isEqual(a: Piece, b: Piece): boolean {
  return a.kind === b.kind && Buffer.compare(a.data, b.data) === 0;
}
