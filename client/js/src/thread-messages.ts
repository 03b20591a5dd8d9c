/** The messages of a thread for a page: reading older ones, and sending. */

import { asShown, Conversation } from "./conversation.js";
import type { ThreadMessage } from "./conversation.js";
import type { PartEvent } from "./conversations.js";
import { Deferred } from "./deferred.js";
import type { PlaitError } from "./errors.js";
import { plain } from "./json.js";
import type { JsonObject } from "./json.js";
import { Listeners } from "./listeners.js";
import { randomId, soon } from "./platform.js";
import type { Item, PendingApproval } from "./protocol.js";
import type { SentMessage } from "./sent-messages.js";
import { errorOf, ThreadPart } from "./thread-part.js";
import type { Carrier, Talk } from "./thread-part.js";
import type { Caller } from "./thread-tasks.js";

/** A message that the server refused. */
export interface MessageRefusal {
  error: PlaitError;
  content: string;
}

/** The state that the messages of all parts of one client share. */
class Shared {
  readonly refused = new Listeners<[MessageRefusal]>();
  readonly parts = new Map<string, ThreadMessages>();
  readonly #answers = new Map<SentMessage, Deferred<string>>();

  constructor(session: Talk) {
    session.partEvents.add((events, end) => this.#handle(events, end));
  }

  wait(message: SentMessage): Promise<string> {
    const answer = new Deferred<string>();
    this.#answers.set(message, answer);
    return answer.promise;
  }

  #handle(events: readonly PartEvent[], end: PlaitError | undefined): void {
    for (const event of events) {
      if (event.type === "delivered") this.#settle(event.message)?.resolve(event.id);
      else if (event.type === "undelivered") this.#refuse(event.message, event.error);
    }
    if (end) for (const message of [...this.#answers.keys()]) this.#refuse(message, end);
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
    soon(() => soon(tell));
  }
}

/**
 * The messages of one part of a thread: the history, the pending messages, and those being sent here. `items` has the
 * newest ones; `older` reads further pages.
 */
export class ThreadMessages extends ThreadPart<ThreadMessage> {
  readonly #conversation: Conversation;
  readonly #shared: Shared;
  readonly #part: string;
  readonly #client: Caller;

  constructor(carrier: Carrier, session: Talk, part: string, client: Caller, shared: unknown = new Shared(session)) {
    const conversation = session.conversations.find(part, Conversation);
    super(carrier, session, conversation);
    this.#conversation = conversation;
    this.#shared = shared as Shared;
    this.#part = part;
    this.#client = client;
    this.#shared.parts.set(part, this);
  }

  /** Returns the messages that the thread's class declares by another name. */
  of(part: string): ThreadMessages {
    return (
      this.#shared.parts.get(part) ?? new ThreadMessages(this.carrier, this.session, part, this.#client, this.#shared)
    );
  }

  /** The calls of tools that wait for a person, in order: the same list while they are the same. */
  get approvals(): readonly PendingApproval[] {
    void this.items; // Opens the part.
    return this.#conversation.approvals;
  }

  /**
   * Approves a call by its id, or refuses it, with a note for the model. Resolves to whether it has waited: the first
   * answer counts. Rejects as `call` does; after `disconnected`, it may be repeated.
   */
  approve(call: string, approved: boolean, note = ""): Promise<boolean> {
    return this.#call("approve", call, approved, note) as Promise<boolean>;
  }

  /** Whether there are messages older than those in `items`. */
  get hasMore(): boolean {
    return this.#conversation.hasMore;
  }

  /** Whether an older page is being read. */
  get isLoading(): boolean {
    return this.#conversation.isLoading;
  }

  /** Why the messages cannot be opened, or older ones cannot be read. */
  override get error(): PlaitError | undefined {
    return super.error ?? errorOf(this.#conversation.olderError);
  }

  /** Adds older messages to `items`, if there are any; resolves to whether there are more. */
  async older(limit?: number): Promise<boolean> {
    await this.open();
    this.#conversation.loadOlder(limit);
    this.carrier.pump();
    return this.when(() => {
      if (this.isLoading) return undefined;
      if (this.error) throw this.error;
      return this.hasMore;
    });
  }

  /**
   * Sends a message, which is shown at once; while offline, at the next join. Resolves to its id when it is durable,
   * and rejects with a PlaitError if the server refuses it. Throws a PlaitError if it is too large, or the client is
   * closed.
   */
  send(content: string, { attachments = [] }: { attachments?: readonly unknown[] } = {}): Promise<string> {
    if (this.carrier.status === "closed") throw this.carrier.closedError;
    const copies = attachments.map((each) => plain(each)) as JsonObject[];
    const answer = this.#shared.wait(this.session.post(this.#part, content, randomId(12), copies));
    this.carrier.pump();
    return answer;
  }

  /**
   * Has the agent answer a question again, beside its other answers; without an id, the last question. `id` is that of
   * the question or of an answer. Resolves to false if that is hidden, as another client was faster. Rejects as `call`
   * does.
   */
  async regenerate(id?: string): Promise<boolean> {
    return (await this.#call("regenerate", ...(id === undefined ? [] : [id]))) as boolean;
  }

  /**
   * Asks a question in other words, beside it and with the same attachments; resolves to the id of the new message.
   * Rejects as `call` does.
   */
  async edit(id: string, content: string): Promise<string> {
    return (await this.#call("edit", id, content)) as string;
  }

  /** Shows the newest branch with a message; resolves to whether it was hidden. Rejects as `call` does. */
  async switch(id: string): Promise<boolean> {
    return (await this.#call("switch", id)) as boolean;
  }

  /** Resolves to the versions of a question, or the answers to it, oldest first. Rejects as `call` does. */
  async siblings(id: string): Promise<ThreadMessage[]> {
    return ((await this.#call("siblings", id)) as Item[]).map(asShown);
  }

  /** Notes that the user has read all messages, on all devices. Rejects as `call` does. */
  async markRead(): Promise<void> {
    await this.#call("read");
  }

  #call(method: string, ...args: readonly unknown[]): Promise<unknown> {
    return this.#client.callWith(`${this.#part}:${method}`, { args });
  }

  /**
   * Calls `fn` with each message of this client that was refused, to any part. Without such a function, the message is
   * logged.
   */
  onRefused(fn: (refusal: MessageRefusal) => void): () => void {
    return this.#shared.refused.add(fn);
  }
}
