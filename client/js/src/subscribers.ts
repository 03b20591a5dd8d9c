/** Those who are told: what happens on a thread, and that something of it may read differently. */

import type { Deferred } from "./deferred.js";
import type { PlaitError } from "./errors.js";
import type { SessionEvent } from "./events.js";
import { Listeners } from "./listeners.js";
import type { Op } from "./protocol.js";

/** A change of others, or several that came as one, with own ones among them perhaps. */
export interface ThreadChange {
  version: number;
  ops: readonly Op[];
  /**
   * A connection's id, "server", "migration", or for a change that takes back version 7 of `c81e` "undo 7 c81e";
   * undefined where several changes came as one.
   */
  source: string | undefined;
}

/** A push that the server refused. */
export interface Refusal {
  error: PlaitError;
  ops: readonly Op[];
}

/** What a thread emits, by name: `{ goal: Card }`. `plait types` writes such a type. */
export type AnyEvents = Record<string, any>;

export class Subscribers {
  readonly moved = new Listeners<[]>();
  readonly change = new Listeners<[ThreadChange]>();
  readonly message = new Listeners<[unknown]>();
  readonly refused = new Listeners<[Refusal]>();
  readonly #events = new Map<string, Listeners<[unknown]>>();
  readonly #onUnheard: (refusal: Refusal) => void;
  #read: readonly unknown[] = [];

  /** `onUnheard` is told of refusals that nobody listens to, nor waits for. */
  constructor(onUnheard: (refusal: Refusal) => void) {
    this.#onUnheard = onUnheard;
  }

  /** Those who are told what is emitted under a name. */
  event(name: string): Listeners<[unknown]> {
    const listeners = this.#events.get(name) ?? new Listeners<[unknown]>();
    this.#events.set(name, listeners);
    return listeners;
  }

  /** Tells an event to whoever listens to such; `answer` is that of a change that is refused. */
  take(event: SessionEvent, answer?: Deferred<number>): void {
    switch (event.type) {
      case "change":
        return this.change.tell({ version: event.version, ops: event.ops, source: event.source });
      case "refused":
        return this.refuse({ error: event.error, ops: event.push.ops }, answer);
      case "message":
        return this.message.tell(event.data);
      case "event":
        return this.#events.get(event.name)?.tell(event.data);
    }
  }

  /** Tells of a change that was refused, for which `answer` stands, if anything does. */
  refuse(refusal: Refusal, answer?: Deferred<number>): void {
    if (!this.refused.isEmpty) return this.refused.tell(refusal);
    const tell = () => answer?.isAwaited || this.#onUnheard(refusal);
    // Whoever made the change may be about to wait for it.
    queueMicrotask(() => queueMicrotask(tell));
  }

  /** Tells that something reads differently, if one of `values` is another than the last time. */
  compare(values: readonly unknown[]): void {
    if (values.every((value, index) => value === this.#read[index])) return;
    this.#read = values;
    this.moved.tell();
  }
}
