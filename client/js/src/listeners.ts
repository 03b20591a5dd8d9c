/** The functions that are called for the events of a thread, and when a value of its client has changed. */

import type { Deferred } from "./deferred.js";
import { raise } from "./errors.js";
import type { PlaitError } from "./errors.js";
import type { SessionEvent } from "./events.js";
import { withoutOwn } from "./patch.js";
import { soon } from "./platform.js";
import type { Op } from "./protocol.js";

/** Functions that are called; one that throws does not keep the others from being called. */
export class Listeners<Args extends unknown[]> {
  readonly #listeners = new Set<(...args: Args) => void>();

  get isEmpty(): boolean {
    return this.#listeners.size === 0;
  }

  /** Returns the function that removes the listener. */
  add(listener: (...args: Args) => void): () => void {
    // A function that is added twice is called twice.
    const own = (...args: Args) => listener(...args);
    this.#listeners.add(own);
    return () => void this.#listeners.delete(own);
  }

  tell(...args: Args): void {
    for (const listener of [...this.#listeners]) {
      // A listener before it may have removed it.
      if (!this.#listeners.has(listener)) continue;
      try {
        listener(...args);
      } catch (error) {
        raise(error);
      }
    }
  }
}

/** A change by others, or several that the server sent as one, which may include this client's own. */
export interface ThreadChange {
  version: number;
  ops: readonly Op[];
  /**
   * A connection's id, "server", "migration", or "undo 7 c81e" for a change that undoes version 7 of `c81e`; undefined
   * if several changes were sent as one.
   */
  source: string | undefined;
}

/** A change that the server refused. */
export interface Refusal {
  error: PlaitError;
  ops: readonly Op[];
}

/** A thread's events, by name: `{ goal: Card }`. `plait types` writes such a type. */
export type AnyEvents = Record<string, any>;

/** The listeners of one event, to its data and the connection that has emitted it. */
type EventListeners = Listeners<[data: any, from: string | null | undefined]>;

/** All listeners of one client. */
export class ThreadListeners {
  /** Called when a value of the client has changed. */
  readonly update: Listeners<[]>;
  readonly change: Listeners<[ThreadChange]>;
  readonly message: Listeners<[unknown]>;
  readonly refused: Listeners<[Refusal]>;
  readonly #events = new Map<string, EventListeners>();
  readonly #onUnhandled: (refusal: Refusal) => void;
  #values: readonly unknown[] = [];

  /** `onUnhandled` is called with each refusal without a listener that is not awaited. */
  constructor(onUnhandled: (refusal: Refusal) => void) {
    this.update = new Listeners();
    this.change = new Listeners();
    this.message = new Listeners();
    this.refused = new Listeners();
    this.#onUnhandled = onUnhandled;
  }

  /** Returns the listeners to the event `name`. */
  event(name: string): EventListeners {
    if (!this.#events.has(name)) this.#events.set(name, new Listeners());
    return this.#events.get(name) as EventListeners;
  }

  /** Passes an event of the session to its listeners; `answer` is the promise of a refused change. */
  dispatch(event: SessionEvent, answer?: Deferred<number>): void {
    switch (event.type) {
      case "change":
        return this.change.tell({ version: event.version, ops: event.ops, source: event.source });
      case "refused":
        return this.refuse({ error: event.error, ops: withoutOwn(event.push.ops) }, answer);
      case "message":
        return this.message.tell(event.data);
      case "event":
        return this.#events.get(event.name)?.tell(event.data, event.from);
    }
  }

  /** Reports a refused change; `answer` is its promise, if it has one. */
  refuse(refusal: Refusal, answer?: Deferred<number>): void {
    if (!this.refused.isEmpty) return this.refused.tell(refusal);
    const tell = () => answer?.promise.isAwaited || this.#onUnhandled(refusal);
    // The caller may be about to await the promise.
    soon(() => soon(tell));
  }

  /** Reports an update if one of `values` differs from the last time. */
  compare(values: readonly unknown[]): void {
    if (values.every((value, index) => value === this.#values[index])) return;
    this.#values = values;
    this.update.tell();
  }
}
