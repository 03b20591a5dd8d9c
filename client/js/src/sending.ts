/** The queue of a socket: sends in order, and waits until the server takes more frames. */

import { PlaitError, errorOf } from "./errors.js";
import type { Dropped, Failed, Unsent } from "./events.js";
import type { Pending } from "./pending.js";
import type { Json, JsonObject } from "./json.js";
import { checkSize, isTooLarge, tooLarge } from "./messages.js";
import type { Bytes, Outgoing } from "./messages.js";
import { Latest, Outbox, PRESENCE_SPACING } from "./outbox.js";
import type { Auth, Call, Error as Failure, Message, Ping, Presence, Result } from "./protocol.js";
import type { Follower, Pushes } from "./pushes.js";

/** The maximum number of calls under way; the server refuses more than this in one thread. */
export const CALLS_AT_ONCE = 256;

export class Sending {
  readonly calls = new CallQueue();
  presence!: Latest<Presence>;
  auth!: Latest<Auth>;
  readonly outbox = new Outbox();
  /** The maximum bytes of a frame, as the last join told. */
  maxFrame = Infinity;
  readonly #pushes: Pushes;
  readonly #now: () => number;
  #isFinishing = false;

  constructor(pushes: Pushes, now: () => number) {
    this.#pushes = pushes;
    this.#now = now;
    this.reset();
  }

  /** Whether a call or message waits to be sent, or, while finishing, a message may not have been taken. */
  get isBusy(): boolean {
    const { isBusy, resumesAt } = this.outbox;
    return this.calls.first !== undefined || (isBusy && (this.#isFinishing || resumesAt !== undefined));
  }

  /** When there may be a frame to send. */
  get due(): number {
    return Math.min(this.#pushes.resumesAt(this.calls.first), this.outbox.due, this.presence.due, this.auth.due);
  }

  /** Starts with a new socket: nothing was sent on it. */
  reset(): void {
    this.#pushes.reset();
    this.outbox.reset();
    this.presence = new Latest(PRESENCE_SPACING);
    this.auth = new Latest();
  }

  /**
   * Handles an error that refuses a frame as too fast; the frame is sent again later. Returns the frames to send at
   * once; undefined for any other error.
   */
  refused({ refused, messages, retry_after: wait }: Failure): Ping[] | undefined {
    const now = this.#now();
    if (refused === "message") return this.outbox.refused(messages ?? 0, wait, now);
    if (refused !== "presence" && refused !== "auth") return undefined;
    this[refused].refused(wait, now);
    return [];
  }

  /** Returns a ping for a client that is closing: it asks whether all messages were taken, if that is not known. */
  finish(): Ping | undefined {
    this.#isFinishing = true;
    const { isBusy, resumesAt } = this.outbox;
    // Refused messages bring a ping of their own when they are sent again.
    return isBusy && resumesAt === undefined ? this.outbox.ask() : undefined;
  }

  /** Returns the frames that may be sent now: calls, messages and pushes in the order in which they were made. */
  take(): (Outgoing | Unsent)[] {
    const [calls, pushes, outbox, now] = [this.calls, this.#pushes, this.outbox, this.#now()];
    const first = [this.presence.take(now), this.auth.take(now), ...outbox.resume(now)];
    const out: (Outgoing | Unsent)[] = first.filter((frame) => frame !== undefined);
    // Pushes made after refused messages wait until those are sent again.
    const nextPush = () => (outbox.resumesAt === undefined ? pushes.take(this.maxFrame, calls.first) : undefined);
    const next = () => calls.next(this.maxFrame, pushes, outbox) ?? nextPush();
    let hasMessages = false;
    for (let each = next(); each; each = next()) {
      if (each.type === "message" || each.type === "bytes") {
        hasMessages = true;
        out.push(...outbox.send(each));
      } else out.push(each);
    }
    if (hasMessages && this.#isFinishing) out.push(outbox.ask());
    return out;
  }
}

interface Waiting extends Follower {
  frame: Call | Message | Bytes;
}

/** Calls and messages that wait to be sent, and the calls that are under way on this socket. */
export class CallQueue {
  #waiting: Waiting[] = [];
  readonly #sent = new Set<number>();
  #next = 1;

  /** Adds a call made after a push, and returns its ref. */
  add(
    method: string,
    args: readonly Json[],
    kwargs: JsonObject,
    after: Pending | undefined,
    more?: Partial<Call>,
  ): number {
    const frame = {
      type: "call",
      ref: this.#next++,
      method,
      ...(args.length > 0 && { args }),
      ...(Object.keys(kwargs).length > 0 && { kwargs }),
      ...more,
    } as Call;
    this.#waiting.push({ frame, after });
    return frame.ref;
  }

  /** Adds a message made after a push. Throws a PlaitError if it is too large. */
  addMessage(frame: Message | Bytes, after: Pending | undefined, maxFrame: number): void {
    this.#waiting.push({ frame: checkSize(frame, maxFrame), after });
  }

  /** The next frame to send, if any waits. */
  get first(): Follower | undefined {
    return this.#waiting[0];
  }

  /** Removes and returns the next frame, if it may be sent; for a frame that is too large, returns its failure. */
  next(
    maxFrame: number,
    pushes: Pick<Pushes, "letPass">,
    outbox: Pick<Outbox, "isOpen">,
  ): Call | Message | Bytes | Failed | Dropped | undefined {
    const [first] = this.#waiting;
    if (first === undefined) return undefined;
    const { frame } = first;
    const isCall = frame.type === "call";
    if (isCall && this.#sent.size >= CALLS_AT_ONCE) return undefined;
    // Frames made after refused messages wait until those are sent again.
    if (!outbox.isOpen || !pushes.letPass(first)) return undefined;
    this.#waiting.shift();
    if (isTooLarge(frame, maxFrame)) {
      const error = tooLarge(isCall ? "call" : "message");
      return isCall ? { type: "failed", ref: frame.ref, error } : { type: "dropped", error };
    }
    if (isCall) this.#sent.add(frame.ref);
    return frame;
  }

  /** Returns the result if its call is under way. */
  take(result: Result): Result | undefined {
    return (result.done ? this.end(result.ref) : this.#sent.has(result.ref)) ? result : undefined;
  }

  /** Ends a call, or removes it if it waits. Tells whether it was under way. */
  end(ref: number): boolean {
    if (this.#sent.delete(ref)) return true;
    this.#waiting = this.#waiting.filter(({ frame }) => frame.type !== "call" || frame.ref !== ref);
    return false;
  }

  /** Ends a call with an error; returns its failure if it was under way. */
  fail(frame: Failure): Failed | undefined {
    const { ref } = frame;
    if (typeof ref !== "number" || !this.end(ref)) return undefined;
    return { type: "failed", ref, error: errorOf(frame) };
  }

  /** Returns the failures of all calls under way, which are lost with their socket. */
  failAll(reason: PlaitError | undefined): Failed[] {
    const error = reason ?? new PlaitError("disconnected", "the connection was lost before the answer");
    const failed = [...this.#sent].map((ref) => ({ type: "failed" as const, ref, error }));
    this.#sent.clear();
    return failed;
  }
}
