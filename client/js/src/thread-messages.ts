/** The messages of a thread as a page works with them: what is shown, older ones, sending. */

import type { ThreadMessage } from "./conversation.js";
import type { Conversation } from "./conversation.js";
import type { Conversations, PartEvent } from "./conversations.js";
import { Deferred, whenFound } from "./deferred.js";
import { PlaitError } from "./errors.js";
import type { ErrorCode } from "./errors.js";
import { plain } from "./json.js";
import type { JsonObject } from "./json.js";
import { Listeners } from "./listeners.js";
import type { SentMessage } from "./sent-messages.js";

/** What carries a session's frames. */
export interface Carrier {
  readonly session: unknown;
  readonly status: string;
  readonly closedError: PlaitError;
  pump(): void;
}

/** A session, as far as this file knows it. */
interface Talk {
  readonly conversations: Conversations;
  post(part: string, content: string, key: string, attachments?: readonly JsonObject[]): SentMessage;
  onPart: (events: readonly PartEvent[], end?: PlaitError) => void;
}

/** A message that the server refused. */
export interface MessageRefusal {
  error: PlaitError;
  content: string;
}

/** What the parts of one client share. */
class Shared {
  readonly carrier: Carrier;
  readonly session: Talk;
  readonly refused = new Listeners<[MessageRefusal]>();
  readonly parts = new Map<string, ThreadMessages>();
  readonly #changed = new Map<string, Listeners<[]>>();
  readonly #answers = new Map<SentMessage, Deferred<string>>();

  constructor(carrier: Carrier, session: Talk) {
    this.carrier = carrier;
    this.session = session;
    session.onPart = (events, end) => this.#handle(events, end);
  }

  changed(part: string): Listeners<[]> {
    const listeners = this.#changed.get(part) ?? new Listeners<[]>();
    this.#changed.set(part, listeners);
    return listeners;
  }

  wait(message: SentMessage): Promise<string> {
    const answer = new Deferred<string>();
    this.#answers.set(message, answer);
    return answer.promise;
  }

  #handle(events: readonly PartEvent[], end: PlaitError | undefined): void {
    const changed = new Set<string>();
    for (const event of events) {
      if (event.type === "part_changed") changed.add(event.part);
      else if (event.type === "delivered") this.#settle(event.message)?.resolve(event.id);
      else this.#refuse(event.message, event.error);
    }
    if (end) {
      for (const message of [...this.#answers.keys()]) this.#refuse(message, end);
      for (const part of this.#changed.keys()) changed.add(part);
    }
    for (const part of changed) this.#changed.get(part)?.tell();
  }

  #settle(message: SentMessage): Deferred<string> | undefined {
    const answer = this.#answers.get(message);
    this.#answers.delete(message);
    return answer;
  }

  #refuse(message: SentMessage, error: PlaitError): void {
    const answer = this.#settle(message);
    answer?.reject(error);
    if (!this.refused.isEmpty) return this.refused.tell({ error, content: message.content });
    const tell = () => answer?.promise.isAwaited || console.error("A message was not sent:", error);
    // The caller may be about to await the promise.
    queueMicrotask(() => queueMicrotask(tell));
  }
}

/** The messages of one part of a thread, which are opened on first use. */
export class ThreadMessages {
  readonly #shared: Shared;
  readonly #part: string;

  constructor(carrier: Carrier, session: Talk, part: string, shared: unknown = new Shared(carrier, session)) {
    this.#shared = shared as Shared;
    this.#part = part;
    this.#shared.parts.set(part, this);
  }

  /** Returns the messages that the thread's class declares by another name. */
  of(part: string): ThreadMessages {
    const { carrier, session, parts } = this.#shared;
    return parts.get(part) ?? new ThreadMessages(carrier, session, part, this.#shared);
  }

  // What is shown

  /**
   * The messages, oldest first: the history, what is pending, and what is being sent here. The same list as long as
   * they are the same. Empty until the first page has come; further pages are read by `older`.
   */
  get items(): readonly ThreadMessage[] {
    this.#open();
    return this.#shared.session.conversations.show(this.#part);
  }

  /** Whether the first page has come. */
  get isReady(): boolean {
    return this.#conversation.isReady;
  }

  /** Whether there are older messages than those in `items`. */
  get hasMore(): boolean {
    return this.#conversation.hasMore;
  }

  /** Whether an older page is being read. */
  get isLoading(): boolean {
    return this.#conversation.isLoading;
  }

  /** Why the messages cannot be opened, or older ones not be read. */
  get error(): PlaitError | undefined {
    const error = this.#conversation.error ?? this.#conversation.olderError;
    return error && new PlaitError(error.code as ErrorCode, error.message);
  }

  /** Calls `fn` whenever one of the values above may have changed. Returns the function that ends this. */
  readonly subscribe = (fn: () => void): (() => void) => {
    const remove = this.#shared.changed(this.#part).add(fn);
    this.#open();
    return remove;
  };

  /** Resolves to `items` when the first page has come, of `limit` messages if they were not opened before. */
  open(limit?: number): Promise<readonly ThreadMessage[]> {
    if (this.#conversation.error) this.#conversation.close();
    this.#open(limit);
    return this.#when(() => (this.isReady ? this.items : undefined));
  }

  /** Adds older messages to `items`, if there are any; resolves to whether there are more. */
  async older(limit?: number): Promise<boolean> {
    await this.open();
    this.#conversation.loadOlder(limit);
    this.#shared.carrier.pump();
    return this.#when(() => {
      if (this.isLoading) return undefined;
      if (this.error) throw this.error;
      return this.hasMore;
    });
  }

  /** Ends being told of changes, and forgets all messages but those that are being sent. */
  close(): void {
    this.#shared.session.conversations.close(this.#part);
    this.#shared.carrier.pump();
  }

  // Sending

  /**
   * Sends a message, which is shown at once; while offline, at the next join. Resolves to its id when it is durable,
   * and rejects with a PlaitError when the server refuses it. Throws one when it is too large, or the client closed.
   */
  send(content: string, { attachments = [] }: { attachments?: readonly unknown[] } = {}): Promise<string> {
    const { carrier, session } = this.#shared;
    if (carrier.status === "closed") throw carrier.closedError;
    const copies = attachments.map((each) => plain(each)) as JsonObject[];
    const answer = this.#shared.wait(session.post(this.#part, content, randomKey(), copies));
    carrier.pump();
    return answer;
  }

  /** Calls `fn` with each message of this client that was refused, to any part. Without one, it is logged. */
  onRefused(fn: (refusal: MessageRefusal) => void): () => void {
    return this.#shared.refused.add(fn);
  }

  get #conversation(): Conversation {
    return this.#shared.session.conversations.of(this.#part);
  }

  #open(limit?: number): void {
    if (this.#conversation.isWanted) return;
    this.#conversation.open(limit);
    this.#shared.carrier.pump();
  }

  #when<T>(find: () => T | undefined): Promise<T> {
    const { carrier } = this.#shared;
    const look = () => {
      if (this.#conversation.error) throw this.error;
      const found = find();
      if (found === undefined && carrier.status === "closed") throw carrier.closedError;
      return found;
    };
    return whenFound(look, this.subscribe, undefined);
  }
}

function randomKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
