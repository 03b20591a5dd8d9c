/** One part of a thread for a page: opening it, its items, and listeners. */

import type { Conversations, PartEvent } from "./conversations.js";
import { whenFound } from "./deferred.js";
import { PlaitError } from "./errors.js";
import type { ErrorCode } from "./errors.js";
import type { JsonObject } from "./json.js";
import { Listeners } from "./listeners.js";
import type { OpenedPart } from "./opened-part.js";
import type { Unopened } from "./protocol.js";
import type { SentMessage } from "./sent-messages.js";

/** Carries a session's frames. */
export interface Carrier {
  readonly session: unknown;
  readonly status: string;
  readonly closedError: PlaitError;
  pump(): void;
}

/** A session, as far as parts know it. */
export interface Talk {
  readonly conversations: Conversations;
  post(part: string, content: string, key: string, attachments?: readonly JsonObject[]): SentMessage;
  readonly partEvents: Listeners<[events: readonly PartEvent[], end?: PlaitError]>;
}

/** The shown items of one part of a thread, which is opened on first use. */
export abstract class ThreadPart<Item> {
  protected readonly carrier: Carrier;
  protected readonly session: Talk;
  protected readonly changed = new Listeners<[]>();
  readonly #opened: OpenedPart;

  constructor(carrier: Carrier, session: Talk, opened: OpenedPart) {
    this.carrier = carrier;
    this.session = session;
    this.#opened = opened;
    session.partEvents.add((events, end) => {
      const isOwn = (event: PartEvent) => event.type === "part_changed" && event.part === opened.part;
      if (end ?? events.some(isOwn)) this.changed.tell();
    });
  }

  /** The shown items, oldest first: the same list while they are the same. Empty until the first page has come. */
  get items(): readonly Item[] {
    this.#open();
    return this.session.conversations.show(this.#opened.part) as readonly Item[];
  }

  /** Whether the first page has come. */
  get isReady(): boolean {
    return this.#opened.isReady;
  }

  /** Why the part cannot be opened. */
  get error(): PlaitError | undefined {
    return errorOf(this.#opened.error);
  }

  /** Calls `fn` whenever one of the values of this object may have changed. Returns the function that ends this. */
  readonly subscribe = (fn: () => void): (() => void) => {
    const remove = this.changed.add(fn);
    this.#open();
    return remove;
  };

  /** Resolves to `items` when the first page has come, of `limit` items if they were not opened before. */
  open(limit?: number): Promise<readonly Item[]> {
    if (this.#opened.error) this.#opened.close();
    this.#open(limit);
    return this.when(() => (this.isReady ? this.items : undefined));
  }

  /** Stops following changes, and forgets all items except those that are being sent. */
  close(): void {
    this.session.conversations.close(this.#opened.part);
    this.carrier.pump();
  }

  #open(limit?: number): void {
    if (this.#opened.isWanted) return;
    this.#opened.open(limit);
    this.carrier.pump();
  }

  /** Resolves to the value that `find` returns now, or after a change. */
  protected when<T>(find: () => T | undefined): Promise<T> {
    const look = () => {
      if (this.#opened.error) throw this.error;
      const found = find();
      if (found === undefined && this.carrier.status === "closed") throw this.carrier.closedError;
      return found;
    };
    return whenFound(look, this.subscribe, undefined);
  }
}

export function errorOf(refusal: Unopened | undefined): PlaitError | undefined {
  return refusal && new PlaitError(refusal.code as ErrorCode, refusal.message);
}
