/** Calls and messages that wait until they may go out, and the calls that are under way on a socket. */

import { PlaitError } from "./errors.js";
import type { Dropped, Failed } from "./events.js";
import type { Pending } from "./fold.js";
import type { Json, JsonObject } from "./json.js";
import type { Bytes } from "./messages.js";
import type { Outbox } from "./outbox.js";
import type { Call, Error as Failure, Message, Result } from "./protocol.js";
import type { Follower, Pushes } from "./pushes.js";
import { isTooLarge, tooLarge } from "./size.js";

interface Waiting extends Follower {
  frame: Call | Message | Bytes;
}

export class Calls {
  #waiting: Waiting[] = [];
  readonly #sent = new Set<number>();
  #next = 1;

  /** Adds a call, and returns its ref. */
  add(method: string, args: readonly Json[], kwargs: JsonObject, behind: Pending | undefined): number {
    const frame: Call = {
      type: "call",
      ref: this.#next++,
      method,
      ...(args.length > 0 && { args }),
      ...(Object.keys(kwargs).length > 0 && { kwargs }),
    };
    this.#waiting.push({ frame, behind });
    return frame.ref;
  }

  /** Adds a message. Throws a PlaitError when it is too large. */
  addMessage(frame: Message | Bytes, behind: Pending | undefined, maxFrame: number): void {
    if (isTooLarge(frame, maxFrame)) throw tooLarge("message");
    this.#waiting.push({ frame, behind });
  }

  /** What is to go out next, if anything waits. */
  get first(): Follower | undefined {
    return this.#waiting[0];
  }

  /** Takes out the next, if it may go out: returns it, or what is to be said when it is too large. */
  next(
    maxFrame: number,
    pushes: Pick<Pushes, "letPass">,
    outbox: Pick<Outbox, "isOpen">,
  ): Call | Message | Bytes | Failed | Dropped | undefined {
    const [first] = this.#waiting;
    // What was asked for behind messages that are sent again waits for those.
    if (first === undefined || !outbox.isOpen || !pushes.letPass(first)) return undefined;
    this.#waiting.shift();
    const { frame } = first;
    const isCall = frame.type === "call";
    if (isTooLarge(frame, maxFrame)) {
      const error = tooLarge(isCall ? "call" : "message");
      return isCall ? { type: "failed", ref: frame.ref, error } : { type: "dropped", error };
    }
    if (isCall) this.#sent.add(frame.ref);
    return frame;
  }

  /** Returns a result that is of a call under way. */
  take(result: Result): Result | undefined {
    const isAwaited = result.done ? this.end(result.ref) : this.#sent.has(result.ref);
    return isAwaited ? result : undefined;
  }

  /** Tells whether a call was under way, which it is no more. One that waits is forgotten. */
  end(ref: number): boolean {
    this.#waiting = this.#waiting.filter(({ frame }) => frame.type !== "call" || frame.ref !== ref);
    return this.#sent.delete(ref);
  }

  /** Returns what became of a call, if it was under way. */
  fail({ ref, code, message, path }: Failure): Failed | undefined {
    if (typeof ref !== "number" || !this.end(ref)) return undefined;
    return { type: "failed", ref, error: new PlaitError(code, message, { path: path ?? undefined }) };
  }

  /** All that were under way are lost with their socket, for a reason if there is one beyond that. */
  failAll(reason: PlaitError | undefined): Failed[] {
    const error = reason ?? new PlaitError("disconnected", "The connection was lost before the call was answered");
    const failed = [...this.#sent].map((ref) => ({ type: "failed" as const, ref, error }));
    this.#sent.clear();
    return failed;
  }
}
