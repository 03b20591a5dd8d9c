/** Calls of the thread's methods, and the streams of their values. */

import { Deferred, onAbortBefore } from "./deferred.js";
import type { EarlyQueue } from "./early.js";
import { PlaitError } from "./errors.js";
import type { SessionEvent } from "./events.js";
import { missing } from "./options.js";
import { plain } from "./json.js";
import type { Json, JsonObject } from "./json.js";
import type { Link } from "./link.js";
import type { Call } from "./protocol.js";

/** The arguments of a call, and a signal that cancels it. */
export interface CallOptions<State = any> extends Optimism<State> {
  args?: readonly unknown[];
  kwargs?: { readonly [name: string]: unknown };
  signal?: AbortSignal;
}

/** How a client with the option `optimistic` shows what a call will do. */
export interface Optimism<State = any> {
  /**
   * Changes a draft of the state as the call with these arguments will change the state. It is called again for each
   * state that is shown before the first change of the call, or before its end if it changes nothing.
   */
  optimistic?: ((draft: State, ...args: any[]) => unknown) | undefined;
}

export class Calls {
  readonly #link: Link;
  readonly #early: EarlyQueue;
  // The calls without a result, by ref.
  readonly #open = new Map<number, Chunks<unknown, unknown>>();

  constructor(link: Link, early: EarlyQueue) {
    this.#link = link;
    this.#early = early;
  }

  /** Calls a method. A failure that is not awaited is an unhandled rejection, unless the user closed or cancelled. */
  call(method: string, options: CallOptions): Promise<unknown> {
    return this.#settled(this.stream(method, options).result, options);
  }

  /** Calls a method as `call` does; for a method that streams, the result is a list of its chunks. */
  gather(method: string, options: CallOptions): Promise<unknown> {
    return this.#settled(gather(this.stream(method, options)), options);
  }

  #settled(ended: Promise<unknown>, options: CallOptions): Promise<unknown> {
    const result = new Deferred<unknown>();
    ended.then(result.resolve, (error: unknown) => {
      const isClosed = this.#link.status === "closed" && !this.#link.error;
      if (isClosed || options.signal?.aborted) result.reject(error);
      else result.raise(error);
    });
    return result.promise;
  }

  /** Calls a method, after all earlier requests. Never throws: the stream ends with any error. */
  stream(method: string, { args = [], kwargs = {}, signal, optimistic }: CallOptions): RpcStream<unknown, unknown> {
    let ref = 0;
    const chunks = new Chunks<unknown, unknown>(() => cancel(new PlaitError("cancelled", `${method} was cancelled`)));
    const cancel = (reason: unknown) => {
      chunks.fail(reason);
      if (!this.#open.delete(ref)) return;
      this.#link.session.cancel(ref);
      this.#link.pump();
    };
    const begin = (call: [string, Json[], JsonObject]) => {
      if (chunks.isEnded) return;
      if (this.#link.status === "closed") return chunks.fail(this.#link.closedError);
      ref = this.#link.session.call(...call, optimistic as Partial<Call> | undefined);
      this.#open.set(ref, chunks);
      this.#link.pump();
    };
    try {
      signal?.throwIfAborted();
      // The part for them passes another object in place of the recipe.
      const recipe = optimistic ?? (args.at(-1) as Optimism | null | undefined)?.optimistic;
      if (typeof recipe === "function") missing("optimistic");
      const call = plain([method, args, kwargs]) as Parameters<typeof begin>[0];
      this.#early.inTurn(() => begin(call));
      if (signal) onAbortBefore(chunks.result, signal, cancel);
    } catch (error) {
      chunks.fail(error);
    }
    return chunks;
  }

  /** Passes a result or a failure to its call. */
  settle(event: SessionEvent): void {
    if (!("ref" in event)) return;
    const chunks = this.#open.get(event.ref);
    if ("error" in event) chunks?.fail(event.error);
    else if (event.done) chunks?.finish(event.value);
    else return chunks?.push(event.value);
    this.#open.delete(event.ref);
  }

  /** Ends all calls with an error, because no answer will come. */
  failAll(error: Error): void {
    for (const chunks of this.#open.values()) chunks.fail(error);
    this.#open.clear();
  }
}

/** Returns the final value of a stream, or else its chunks. */
async function gather(stream: RpcStream<unknown, unknown>): Promise<unknown> {
  const chunks: unknown[] = [];
  for await (const chunk of stream) chunks.push(chunk);
  const final = await stream.result;
  return final === undefined ? chunks : final;
}

/**
 * An async iterator over the chunks of a method; leaving the loop cancels the call. `result` is the method's return
 * value at the end; it rejects with the error that the loop throws.
 */
export interface RpcStream<Chunk, Final = undefined> {
  readonly result: Promise<Final>;
  [Symbol.asyncIterator](): this;
  next(): Promise<IteratorResult<Chunk, Final | undefined>>;
  return(): Promise<IteratorResult<Chunk, Final | undefined>>;
}

/** A stream, filled by the call. */
class Chunks<Chunk, Final = undefined> implements RpcStream<Chunk, Final> {
  readonly #final = new Deferred<Final>();
  readonly #cancel: () => void;
  #chunks: Chunk[] = [];
  #readers: Deferred<IteratorResult<Chunk, Final | undefined>>[] = [];
  #end: (() => Promise<IteratorResult<Chunk, Final | undefined>>) | undefined;

  constructor(cancel: () => void) {
    this.#cancel = cancel;
  }

  get result(): Promise<Final> {
    return this.#final.promise;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  next(): Promise<IteratorResult<Chunk, Final | undefined>> {
    if (this.#chunks.length > 0) return Promise.resolve({ done: false, value: this.#chunks.shift() as Chunk });
    if (this.#end) return this.#end();
    const reader = new Deferred<IteratorResult<Chunk, Final | undefined>>();
    this.#readers.push(reader);
    return reader.promise;
  }

  return(): Promise<IteratorResult<Chunk, Final | undefined>> {
    const isOpen = !this.#end;
    const end = () => ended(undefined);
    this.#chunks = [];
    this.#close(end);
    this.#end = end;
    if (isOpen) this.#cancel();
    return end();
  }

  // Filling the stream

  get isEnded(): boolean {
    return this.#end !== undefined;
  }

  /** Adds a chunk. */
  push(chunk: Chunk): void {
    const reader = this.#readers.shift();
    if (reader) reader.resolve({ done: false, value: chunk });
    else this.#chunks.push(chunk);
  }

  /** Ends the stream with the method's result. */
  finish(value: Final): void {
    this.#final.resolve(value);
    this.#close(() => ended(value));
  }

  /** Ends the stream with an error. */
  fail(error: unknown): void {
    this.#final.reject(error);
    // The error is thrown once; after it the iterator is done, like any other.
    this.#close(() => {
      this.#end = () => ended(undefined);
      return Promise.reject(error as Error);
    });
  }

  #close(end: () => Promise<IteratorResult<Chunk, Final | undefined>>): void {
    if (this.#end) return;
    this.#end = end;
    for (const reader of this.#readers.splice(0)) {
      this.#end().then(reader.resolve, reader.reject);
    }
  }
}

function ended<Final>(value: Final): Promise<IteratorReturnResult<Final>> {
  return Promise.resolve({ done: true, value });
}
