/**
 * The messages of one part of a thread in a client: no I/O.
 *
 * The same as `conversation.py` of the Python client, with the same names.
 */

import type { JsonObject } from "./json.js";
import { limited, OpenedPart } from "./opened-part.js";
import type { Input, Item, Open, Page, Part, PendingApproval, Unopened } from "./protocol.js";
import type { SentMessage } from "./sent-messages.js";

export type MessageStatus = NonNullable<Item["status"]>;

/** A message as it is shown; it stays the same object while it does not change. */
export interface ThreadMessage extends Item {
  readonly content: string | null;
  readonly position: number;
  readonly depth: number;
  readonly metadata: JsonObject;
  readonly attachments: readonly JsonObject[];
  /** "sending" for a message that was sent here, and is not known to have reached the server. */
  readonly status: MessageStatus;
}

const NOTHING: readonly PendingApproval[] = [];

type ToolCall = { id: string; type: "function"; function: { name: string; arguments: string } };

/** The known messages of a part, from when it is opened. */
export class Conversation extends OpenedPart {
  /** Whether there are messages older than the known ones. */
  hasMore = false;
  /** Why an older page cannot be read; this stops nothing else. */
  olderError: Unopened | undefined;
  /** The calls that wait for a person: the same list while they are the same. */
  approvals: readonly PendingApproval[] = NOTHING;
  #mayApprove = false;
  #items = new Map<string, ThreadMessage>();
  // The number of code points of streaming messages, so that a chunk need not count them again.
  #lengths = new WeakMap<ThreadMessage, number>();
  // The size of the older page that is wanted.
  #older: number | undefined;
  #shown: ThreadMessage[] | undefined;

  /** Whether an older page is awaited. */
  get isLoading(): boolean {
    return this.#older !== undefined;
  }

  /** Returns the messages to show: the history, the pending messages, and the messages that are being sent. */
  show(sent: readonly SentMessage[]): ThreadMessage[] {
    this.#shown ??= order(this.#items.values());
    const known = new Set([...this.#items.values()].map(({ metadata }) => metadata["key"]));
    const own = sent.filter(({ part, key }) => part === this.part && !known.has(key));
    return [...this.#shown, ...own.map(asItem)];
  }

  /** Asks for an older page, if there is one. */
  loadOlder(limit?: number): void {
    this.error = this.olderError = undefined;
    if (this.isReady && this.hasMore) this.#older ??= limit ?? this.limit;
  }

  override close(): void {
    super.close();
    this.hasMore = false;
    this.#older = this.olderError = undefined;
    this.approvals = NOTHING;
    this.#set(new Map());
  }

  // Inside

  protected override applyPage(page: Page): void {
    const { before, reset = false, more = false, items = [], removed = [] } = page;
    const isOlder = typeof before === "number";
    if (isOlder) this.#older = undefined;
    else {
      this.#mayApprove = page.may_approve ?? false;
      this.#setApprovals(page.approvals ?? []);
    }
    this.#set(reset ? new Map() : this.#items);
    if (reset || isOlder) {
      this.hasMore = more;
      for (const each of items) this.#items.set(each.id, asShown(each));
    } else {
      for (const each of items) this.#put(each);
      for (const id of removed) this.#items.delete(id);
    }
  }

  protected override fail(frame: Unopened, isOlder: boolean): void {
    this.#older = undefined;
    if (isOlder) this.olderError = frame;
    else super.fail(frame, isOlder);
  }

  protected override follow(frame: Part): boolean {
    if (frame.op === "chunk") return this.#extend(frame);
    if (frame.approvals) {
      this.#setApprovals(frame.approvals);
      return true;
    }
    if (!super.follow(frame)) return false;
    this.#shown = undefined;
    return true;
  }

  protected override apply({ op, message, id, taken = {}, status }: Part): boolean {
    const known = this.#items.get(id ?? "");
    if (message) this.#put(message);
    else if (op === "delete") this.#items.delete(id ?? "");
    else if (op === "end" && known && status)
      this.#items.set(known.id, { ...known, status, taken: [], tool_calls: null });
    const moved = Object.entries(taken);
    if (!moved.every(([each]) => this.#items.has(each))) return false;
    for (const [each, position] of moved) {
      const item = this.#items.get(each) as ThreadMessage;
      this.#put({ ...item, position, status: "completed" });
    }
    return true;
  }

  /** Adds to a streaming message, unless the text is there already. */
  #extend({ id, at = 0, text = "", input }: Part): boolean {
    const known = this.#items.get(id ?? "");
    if (known?.status !== "streaming") return false;
    if (input) return this.#extendCall(known, input);
    const content = known.content ?? "";
    // Positions count code points, not UTF-16 units.
    const length = this.#lengths.get(known) ?? countPoints(content);
    const missing = length - at;
    if (missing < 0) return (this.isFollowing = false);
    const added = missing === 0 ? text : [...text].slice(missing).join("");
    if (added === "") return false;
    const extended = { ...known, content: content + added };
    this.#lengths.set(extended, length + countPoints(added));
    this.#items.set(known.id, extended);
    this.#shown = undefined;
    return true;
  }

  /** Adds to the arguments of a call of a streaming message, unless the text is there already. */
  #extendCall(known: ThreadMessage, { call, name, at = 0, text = "" }: Input): boolean {
    const calls = [...((known.tool_calls ?? []) as ToolCall[])];
    const found = calls.findIndex(({ id }) => id === call);
    const before = calls[found]?.function.arguments ?? "";
    const missing = countPoints(before) - at;
    if (missing < 0) return (this.isFollowing = false);
    const extended = { name, arguments: before + [...text].slice(missing).join("") };
    calls.splice(found < 0 ? calls.length : found, 1, { id: call, type: "function", function: extended });
    this.#items.set(known.id, { ...known, tool_calls: calls });
    this.#shown = undefined;
    return true;
  }

  protected override nextOlder(): Open | undefined {
    const before = this.#oldest;
    if (this.#older === undefined || before === undefined) return undefined;
    return { type: "open", part: this.part, before, ...limited(this.#older) };
  }

  get #oldest(): number | undefined {
    let oldest: number | undefined;
    for (const { status, position } of this.#items.values())
      if (status !== "pending" && !(position >= (oldest ?? Infinity))) oldest = position;
    return oldest;
  }

  /** Adds or replaces a message, except one among the unknown older messages, which comes with these. */
  #put(item: Item): void {
    const shown = asShown(item);
    const isPlaced = (this.#items.get(item.id)?.status ?? "pending") !== "pending";
    const oldest = this.hasMore && !isPlaced ? this.#oldest : undefined;
    if (oldest === undefined || shown.position > oldest || shown.status === "pending") this.#items.set(item.id, shown);
    else this.#items.delete(item.id);
  }

  #setApprovals(approvals: readonly PendingApproval[]): void {
    const may_approve = this.#mayApprove;
    this.approvals = approvals.length > 0 ? approvals.map((each) => ({ ...each, may_approve })) : NOTHING;
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

/** Returns messages in the order in which they are shown; a stream comes after the pending ones that it answers. */
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

/** Returns a message of the server with its defaults. */
export function asShown(item: Item): ThreadMessage {
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

/** Returns a message that is not known to have reached the server. */
function asItem({ key, content, attachments }: SentMessage): ThreadMessage {
  return asShown({ id: key, role: "user", content, metadata: { key }, attachments, status: "sending" });
}
