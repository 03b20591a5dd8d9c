/**
 * The messages of one part of a thread as a client has them: no I/O.
 *
 * The same as `conversation.py` of the Python client, with the same names.
 */

import type { JsonObject } from "./json.js";
import type { Close, Item, Open, Page, Part, Unopened } from "./protocol.js";
import type { SentMessage } from "./sent-messages.js";

export type MessageStatus = NonNullable<Item["status"]>;

/** A message as it is shown, which stays the same object as long as it does not change. */
export interface ThreadMessage extends Item {
  readonly content: string | null;
  readonly position: number;
  readonly depth: number;
  readonly metadata: JsonObject;
  readonly attachments: readonly JsonObject[];
  /** "sending" for one that was sent here, and that the server is not known to have. */
  readonly status: MessageStatus;
}

/** How many messages a page has, if nothing else is asked for. */
export const PAGE = 50;

/**
 * What is known of the messages of a part, from when it is opened.
 *
 * After a reconnect it is opened again, with what was missed. What comes between an Open and its page is held back.
 */
export class Conversation {
  readonly part: string;
  /** Whether there are older messages than those that are known. */
  hasMore = false;
  /** Why the part cannot be opened, and why an older page cannot be read, which stops nothing else. */
  error: Unopened | undefined;
  olderError: Unopened | undefined;
  #items = new Map<string, ThreadMessage>();
  // How many code points messages have that are streaming, so that a chunk need not count them again.
  #lengths = new WeakMap<ThreadMessage, number>();
  // Of what is known; undefined before the first page, and when the history has begun again.
  #revision: number | undefined;
  #epoch: string | undefined;
  #limit = PAGE;
  #isWanted = false;
  // Whether the socket tells of changes, and what is awaited on it.
  #isFollowing = false;
  #awaits: "page" | "older" | undefined;
  #older: number | undefined;
  #leaves = false;
  #held: Part[] = [];
  // When a refused Open may be sent again.
  #resumesAt = 0;
  #shown: ThreadMessage[] | undefined;

  constructor(part: string) {
    this.part = part;
  }

  /** Whether it was opened. */
  get isWanted(): boolean {
    return this.#isWanted;
  }

  /** Whether a page has come. */
  get isReady(): boolean {
    return this.#revision !== undefined;
  }

  /** Whether an older page is awaited. */
  get isLoading(): boolean {
    return this.#older !== undefined;
  }

  /** Whether messages that the server has are still to come with a page. */
  get keepsAnswered(): boolean {
    return this.#isWanted && !(this.#isFollowing && this.#awaits === undefined);
  }

  /** Returns the messages as they are shown: the history, what is pending, and what is being sent. */
  show(sent: readonly SentMessage[]): ThreadMessage[] {
    this.#shown ??= order(this.#items.values());
    const known = new Set([...this.#items.values()].map(({ metadata }) => metadata["key"]));
    const own = sent.filter(({ part, key }) => part === this.part && !known.has(key));
    return [...this.#shown, ...own.map(asItem)];
  }

  // Requests

  /** Wants the newest messages, and all changes. */
  open(limit?: number): void {
    this.#limit = limit ?? this.#limit;
    this.#isWanted = true;
    this.error = undefined;
  }

  /** Wants an older page, if there is one. */
  loadOlder(limit?: number): void {
    this.error = this.olderError = undefined;
    if (this.isReady && this.hasMore) this.#older ??= limit ?? this.#limit;
  }

  /** Wants no more, and forgets all. */
  close(): void {
    this.#leaves ||= this.#isFollowing || this.#awaits !== undefined;
    this.#isWanted = this.#isFollowing = this.hasMore = false;
    this.#awaits = this.#older = this.#revision = this.error = this.olderError = undefined;
    this.#set(new Map());
  }

  // The socket

  /** A new socket: nothing was sent on it, or refused. */
  reset(): void {
    this.#isFollowing = this.#leaves = false;
    this.#awaits = this.error = undefined;
    this.#held = [];
    this.#resumesAt = 0;
  }

  /** The thread is joined; messages of another epoch are shown until the page comes. */
  join(epoch: string): void {
    if (epoch !== this.#epoch) this.#revision = undefined;
    this.#epoch = epoch;
  }

  /** When there may be something to send. */
  get due(): number {
    return this.#next ? this.#resumesAt : Infinity;
  }

  /** Returns what may be sent by now. */
  take(now: number): (Open | Close)[] {
    const frames: (Open | Close)[] = [];
    if (this.#leaves) frames.push({ type: "close", part: this.part });
    this.#leaves = false;
    const frame = now >= this.#resumesAt ? this.#next : undefined;
    if (frame) {
      this.#awaits = frame.before === undefined ? "page" : "older";
      frames.push(frame);
    }
    return frames;
  }

  // Frames

  /** Takes in a frame; tells whether anything else may be shown. */
  receive(frame: Page | Part | Unopened, now: number): boolean {
    if (frame.type === "unopened") return this.#refused(frame, now);
    if (frame.type === "page") return this.#turn(frame);
    if (this.#awaits === undefined) return this.#isFollowing && this.#follow(frame);
    this.#held.push(frame);
    return false;
  }

  #turn({ before, revision, reset = false, more = false, items = [], removed = [] }: Page): boolean {
    const isOlder = typeof before === "number";
    if (this.#awaits !== (isOlder ? "older" : "page")) return false; // It was closed since.
    this.#awaits = undefined;
    if (isOlder) this.#older = undefined;
    else {
      this.#isFollowing = true;
      this.#revision = revision;
    }
    this.#set(reset ? new Map() : this.#items);
    if (reset || isOlder) {
      this.hasMore = more;
      for (const each of items) this.#items.set(each.id, asShown(each));
    } else {
      for (const each of items) this.#put(each);
      for (const id of removed) this.#items.delete(id);
    }
    this.#release();
    return true;
  }

  #refused(frame: Unopened, now: number): boolean {
    if (this.#awaits === undefined) return false;
    const isOlder = this.#awaits === "older";
    this.#awaits = undefined;
    if (typeof frame.retry_after === "number") this.#resumesAt = now + frame.retry_after;
    else {
      this[isOlder ? "olderError" : "error"] = frame;
      this.#older = undefined;
    }
    this.#release();
    return true;
  }

  /** Applies what was held back. */
  #release(): void {
    for (const frame of this.#held.splice(0)) if (this.#isFollowing) this.#follow(frame);
  }

  /** Applies a change, unless the page has it; opens the part again if one before it is missing. */
  #follow(frame: Part): boolean {
    const revision = this.#revision as number;
    if (frame.op === "missed") return (this.#isFollowing = false);
    if (frame.op === "chunk") return this.#extend(frame);
    if (frame.revision <= revision) return false;
    if (frame.revision > revision + 1 || !this.#apply(frame)) return (this.#isFollowing = false);
    this.#revision = frame.revision;
    this.#shown = undefined;
    return true;
  }

  /** Applies a change; returns false if it does not fit. */
  #apply({ op, message, id, taken = {}, status }: Part): boolean {
    const known = this.#items.get(id ?? "");
    if (message) this.#put(message);
    else if (op === "delete") this.#items.delete(id ?? "");
    else if (op === "end" && known && status) this.#items.set(known.id, { ...known, status, taken: [] });
    const moved = Object.entries(taken);
    if (!moved.every(([each]) => this.#items.has(each))) return false;
    for (const [each, position] of moved) {
      const item = this.#items.get(each) as ThreadMessage;
      this.#put({ ...item, position, status: "completed" });
    }
    return true;
  }

  /** Adds to a message that is streaming, unless the text is there already. */
  #extend({ id, at = 0, text = "" }: Part): boolean {
    const known = this.#items.get(id ?? "");
    if (known?.status !== "streaming") return false;
    const content = known.content ?? "";
    // Positions count code points, not UTF-16 units.
    const length = this.#lengths.get(known) ?? countPoints(content);
    const missing = length - at;
    if (missing < 0) return (this.#isFollowing = false);
    const added = missing === 0 ? text : [...text].slice(missing).join("");
    if (added === "") return false;
    const extended = { ...known, content: content + added };
    this.#lengths.set(extended, length + countPoints(added));
    this.#items.set(known.id, extended);
    this.#shown = undefined;
    return true;
  }

  // Inside

  /** What is to be asked for next. */
  get #next(): Open | undefined {
    if (!this.#isWanted || this.#awaits !== undefined || this.error) return undefined;
    const { part } = this;
    if (!this.#isFollowing) {
      const since = this.#revision;
      return { type: "open", part, ...(since !== undefined && { since }), ...limited(this.#limit) };
    }
    const before = this.#oldest;
    if (this.#older === undefined || before === undefined) return undefined;
    return { type: "open", part, before, ...limited(this.#older) };
  }

  get #oldest(): number | undefined {
    let oldest: number | undefined;
    for (const { status, position } of this.#items.values())
      if (status !== "pending" && !(position >= (oldest ?? Infinity))) oldest = position;
    return oldest;
  }

  /** Adds or replaces a message; one that belongs to the older messages that are not known comes with them. */
  #put(item: Item): void {
    const shown = asShown(item);
    const isPlaced = (this.#items.get(item.id)?.status ?? "pending") !== "pending";
    const oldest = this.hasMore && !isPlaced ? this.#oldest : undefined;
    if (oldest === undefined || shown.position > oldest || shown.status === "pending") this.#items.set(item.id, shown);
    else this.#items.delete(item.id);
  }

  #set(items: Map<string, ThreadMessage>): void {
    this.#items = items;
    this.#shown = undefined;
  }
}

function countPoints(text: string): number {
  if (!/[\ud800-\udbff]/.test(text)) return text.length;
  let count = 0;
  for (let at = 0; at < text.length; count += 1) at += (text.codePointAt(at) as number) > 0xffff ? 2 : 1;
  return count;
}

function limited(limit: number): { limit?: number } {
  return limit === PAGE ? {} : { limit };
}

/** Returns messages as they are shown; a stream stands after the pending messages that it answers. */
function order(items: Iterable<ThreadMessage>): ThreadMessage[] {
  const sorted = [...items].sort((a, b) => a.position - b.position);
  const pending = sorted.filter(({ status }) => status === "pending");
  const places = new Map(pending.map(({ id }, index) => [id, index + 1]));
  const answers = ({ taken = [] }: ThreadMessage) => taken.some((id) => places.has(id));
  const history = sorted.filter((each) => each.status !== "pending" && !answers(each));
  const streams = sorted.filter((each) => each.status !== "pending" && answers(each));
  const at = Math.max(0, ...streams.flatMap(({ taken = [] }) => taken.map((id) => places.get(id) ?? 0)));
  return [...history, ...pending.slice(0, at), ...streams, ...pending.slice(at)];
}

function asShown(item: Item): ThreadMessage {
  return {
    ...item,
    content: item.content ?? null,
    position: item.position ?? 0,
    depth: item.depth ?? 0,
    metadata: item.metadata ?? {},
    attachments: item.attachments ?? [],
    status: item.status ?? "completed",
  };
}

/** Returns a message that the server is not known to have. */
function asItem({ key, content, attachments }: SentMessage): ThreadMessage {
  return asShown({ id: key, role: "user", content, metadata: { key }, attachments, status: "sending" });
}
