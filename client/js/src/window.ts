/** Which pushes a socket has carried, and which of them are to be carried again. */

import type { Pending } from "./fold.js";
import { UNANSWERED } from "./protocol.js";
import type { Nack } from "./protocol.js";

/** What the server has not looked at waits so many seconds when it does not say how long. */
const RETRY_AFTER = 1;
/** So far apart, at least, are messages that nobody could send again, while the server takes only a few. */
const APART = 0.1;

export class SendWindow {
  readonly #now: () => number;
  /** How many pushes, from the first on, are on this socket and without an answer. */
  #sent = 0;
  /** Refs of pushes on this socket that are to be sent again: their own answers mean nothing. */
  #stale: number[] = [];
  /** Until when nothing is sent. */
  heldUntil: number | undefined = undefined;
  // The longest that the server has asked to wait; 0 while it takes what comes.
  #pace = 0;

  constructor(now: () => number) {
    this.#now = now;
  }

  /** A new socket carries nothing. */
  reset(): void {
    this.#sent = 0;
    this.#stale = [];
    this.heldUntil = undefined;
    this.#pace = 0;
  }

  /** The time has come; `isIdle` tells whether nothing waits for it. */
  release(isIdle: boolean): void {
    this.heldUntil = undefined;
    if (isIdle) this.#pace = 0;
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

  /**
   * Tells whether a call or message behind the push at `index` may go out; if so, it does. While the server takes only a
   * few, it would refuse one where it lets a push come again: then each waits until it can be taken.
   */
  letPass(index: number): boolean {
    if (this.#pace === 0) return this.has(index);
    if (index >= 0 || this.heldUntil !== undefined) return false;
    this.#rest();
    return true;
  }

  /** The push at `index` has its answer; as answers come in order, so has all that was sent before it. */
  answered(index: number): void {
    if (index < this.#sent) this.#sent--;
    this.#stale = [];
    if (this.#sent === 0 && this.#pace > 0) this.#rest();
  }

  /** Tells whether a nack is for what is to be sent again anyway. */
  isStale(nack: Nack): boolean {
    const index = this.#stale.indexOf(nack.ref);
    if (index < 0) return false;
    this.#stale.splice(0, index + 1);
    if (nack.code === "rate_limited") this.hold(nack);
    return true;
  }

  /** The server has not looked at the push `ref`, nor at those behind it: all from `index` on are to be sent again. */
  rewind(pushes: readonly Pending[], ref: number, index: number): void {
    const carried = pushes.slice(0, this.#sent).map((push) => push.ref);
    this.#stale.push(...carried.filter((each) => each > ref));
    this.#sent = Math.min(this.#sent, index);
  }

  hold(nack: Nack): void {
    const wait = nack.retry_after ?? RETRY_AFTER;
    this.#pace = Math.max(this.#pace, APART, wait);
    this.#wait(wait);
  }

  #rest(): void {
    this.#wait(this.#pace);
  }

  #wait(seconds: number): void {
    this.heldUntil = Math.max(this.heldUntil ?? 0, this.#now() + seconds);
  }
}
