/** What a method streams, chunk by chunk. */

import { Deferred } from "./deferred.js";

/**
 * An async iterator over the chunks; leaving the loop cancels the call. `result` is what the method returned at last,
 * and rejects as the loop throws.
 */
export interface RpcStream<Chunk, Final = undefined> {
  readonly result: Promise<Final>;
  [Symbol.asyncIterator](): this;
  next(): Promise<IteratorResult<Chunk, Final | undefined>>;
  return(): Promise<IteratorResult<Chunk, Final | undefined>>;
}

/** An RpcStream, and what it is filled by. */
export class Chunks<Chunk, Final = undefined> implements RpcStream<Chunk, Final> {
  readonly #final = new Deferred<Final>();
  readonly #cancel: () => void;
  #chunks: Chunk[] = [];
  #readers: Deferred<IteratorResult<Chunk, Final | undefined>>[] = [];
  #end: (() => Promise<IteratorResult<Chunk, Final | undefined>>) | undefined = undefined;

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
    const end = () => Promise.resolve({ done: true as const, value: undefined });
    this.#chunks = [];
    this.#close(end);
    this.#end = end;
    if (isOpen) this.#cancel();
    return end();
  }

  // What fills it

  get isEnded(): boolean {
    return this.#end !== undefined;
  }

  /** Another chunk has come. */
  push(chunk: Chunk): void {
    const reader = this.#readers.shift();
    if (reader) reader.resolve({ done: false, value: chunk });
    else this.#chunks.push(chunk);
  }

  /** The method has returned. */
  finish(value: Final): void {
    this.#final.resolve(value);
    this.#close(() => Promise.resolve({ done: true, value }));
  }

  /** The method has failed, or will not be heard of any more. */
  fail(error: unknown): void {
    this.#final.reject(error);
    // The error is thrown once; after it there is nothing more, as with any iterator.
    this.#close(() => {
      this.#end = () => Promise.resolve({ done: true, value: undefined });
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
