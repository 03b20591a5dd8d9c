/** Those who wait for answers: the promises of changes, and the streams of calls. */

import { Deferred } from "./deferred.js";
import type { SessionEvent } from "./events.js";
import type { Pending } from "./fold.js";
import type { Chunks } from "./stream.js";

export class Answers {
  readonly #pushes = new Map<Pending, Deferred<number>>();
  readonly #calls = new Map<number, Chunks<unknown, unknown>>();

  /** Lets a promise wait for what becomes of a push. */
  addPush(push: Pending, answer: Deferred<number>): void {
    this.#pushes.set(push, answer);
  }

  /** Returns the promise that waits for a push. */
  of(push: Pending): Deferred<number> | undefined {
    return this.#pushes.get(push);
  }

  addCall(ref: number, answer: Chunks<unknown, unknown>): void {
    this.#calls.set(ref, answer);
  }

  /** Waits no more for a call; tells whether it was waited for. */
  dropCall(ref: number): boolean {
    return this.#calls.delete(ref);
  }

  /** Hands an answer to whoever waits for it, if somebody does. */
  take(event: SessionEvent): void {
    switch (event.type) {
      case "applied":
        this.#pushes.get(event.push)?.resolve(event.version);
        this.#pushes.delete(event.push);
        return;
      case "refused":
        this.#pushes.get(event.push)?.reject(event.error);
        this.#pushes.delete(event.push);
        return;
      case "result":
        if (!event.done) return this.#calls.get(event.ref)?.push(event.value);
        this.#calls.get(event.ref)?.finish(event.value);
        this.#calls.delete(event.ref);
        return;
      case "failed":
        this.#calls.get(event.ref)?.fail(event.error);
        this.#calls.delete(event.ref);
    }
  }

  /** There will be no more answers. */
  failAll(error: Error): void {
    for (const answer of this.#pushes.values()) answer.reject(error);
    for (const call of this.#calls.values()) call.fail(error);
    this.#pushes.clear();
    this.#calls.clear();
  }
}
