/** Which pushes a socket has carried, and which of them are to be carried again. */

import type { Pending } from "./fold.js";
import { UNANSWERED } from "./protocol.js";
import type { Nack } from "./protocol.js";

/** What the server has not looked at waits so many seconds when it does not say how long. */
const RETRY_AFTER = 1;

export class SendWindow {
  /** How many pushes, from the first on, are on this socket and without an answer. */
  #sent = 0;
  /** Refs of pushes on this socket that are to be sent again: their own answers mean nothing. */
  #stale: number[] = [];
  /** Until when nothing is sent. */
  heldUntil: number | undefined = undefined;

  /** A new socket carries nothing. */
  reset(): void {
    this.#sent = 0;
    this.#stale = [];
    this.heldUntil = undefined;
  }

  /** Returns the next push that is to be sent, if there is one. */
  next(pushes: readonly Pending[]): Pending | undefined {
    return this.heldUntil === undefined && this.#sent < UNANSWERED ? pushes[this.#sent] : undefined;
  }

  /** The next push goes out. */
  take(push: Pending): void {
    this.#sent++;
    push.sent = push.ops;
  }

  /** Tells whether the push at `index` is on its way. */
  has(index: number): boolean {
    return index < this.#sent;
  }

  /** The push at `index` has its answer; as answers come in order, so has all that was sent before it. */
  answered(index: number): void {
    if (index < this.#sent) this.#sent--;
    this.#stale = [];
  }

  /** Tells whether a nack is for what is to be sent again anyway. */
  isStale(nack: Nack, now: number): boolean {
    const index = this.#stale.indexOf(nack.ref);
    if (index < 0) return false;
    this.#stale.splice(0, index + 1);
    if (nack.code === "rate_limited") this.hold(nack, now);
    return true;
  }

  /** The server has not looked at the push `ref`, nor at those behind it: all from `index` on are to be sent again. */
  rewind(pushes: readonly Pending[], ref: number, index: number): void {
    const carried = pushes.slice(0, this.#sent).map((push) => push.ref);
    this.#stale.push(...carried.filter((each) => each > ref));
    this.#sent = Math.min(this.#sent, index);
  }

  hold(nack: Nack, now: number): void {
    this.heldUntil = Math.max(this.heldUntil ?? 0, now + (nack.retry_after ?? RETRY_AFTER));
  }
}
