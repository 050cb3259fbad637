/**
 * Which classes the values of a checkpoint may have.
 *
 * LangGraph's serializer makes what a value names: any class that @langchain/core exports, with any arguments. So whoever
 * may write to a thread could have tracers, clients and the like made in every agent that reads it. `Guarded` makes
 * messages, and the classes that the program allows. Any other class is an error, at the write and at the read.
 */
import { JsonPlusSerializer, type SerializerProtocol } from "@langchain/langgraph-checkpoint";

const MESSAGES = [
  "AIMessage", "AIMessageChunk", "ChatMessage", "ChatMessageChunk", "FunctionMessage", "FunctionMessageChunk",
  "HumanMessage", "HumanMessageChunk", "RemoveMessage", "SystemMessage", "SystemMessageChunk", "ToolMessage",
  "ToolMessageChunk",
].map((name) => `langchain_core/messages/${name}`);

/** Thrown for a value of a class that the saver may not make. Nothing was written, or read. */
export class TypeNotAllowedError extends Error {
  constructor(readonly typeName: string) {
    super(
      `a value of the graph has the class ${typeName}, which is not allowed; if you trust it, ` +
        `give new StatewardSaver(target, { allowedTypes: [${JSON.stringify(typeName)}] })`,
    );
    this.name = "TypeNotAllowedError";
  }
}

/** LangGraph's serializer, which makes objects of allowed classes only. */
export class Guarded implements SerializerProtocol {
  readonly #inner = new JsonPlusSerializer();
  readonly #allowed: ReadonlySet<string>;

  /** `allowed`: class paths as LangChain stores them, with slashes, such as "langchain_core/prompts/PromptTemplate". */
  constructor(allowed: readonly string[] = []) {
    this.#allowed = new Set([...MESSAGES, ...allowed]);
  }

  /** Does not check: of an array only the elements that are sent are checked. */
  dumpsTyped(value: unknown): Promise<[string, Uint8Array]> {
    return this.#inner.dumpsTyped(value);
  }

  async loadsTyped(type: string, data: Uint8Array | string): Promise<unknown> {
    this.check(type, data);
    return this.#inner.loadsTyped(type, data);
  }

  /** Throws TypeNotAllowedError for a value that `loadsTyped` would not load. */
  check(type: string, data: Uint8Array | string): void {
    if (type !== "json") return;
    // Every name of a class is in the text: keys of JSON may be escaped, so the whole text is parsed and looked through.
    const text = typeof data === "string" ? data : new TextDecoder().decode(data);
    if (text.includes("constructor") || text.includes("\\u")) this.#look(JSON.parse(text));
  }

  #look(root: unknown): void {
    const waiting: unknown[] = [root];
    while (waiting.length > 0) {
      const value = waiting.pop();
      if (typeof value !== "object" || value === null) continue;
      const { lc, type, id } = value as Record<string, unknown>;
      if (lc === 1 && type === "constructor" && Array.isArray(id)) {
        const name = id.join("/");
        if (!this.#allowed.has(name)) throw new TypeNotAllowedError(name);
      }
      for (const each of Object.values(value)) waiting.push(each);
    }
  }
}
