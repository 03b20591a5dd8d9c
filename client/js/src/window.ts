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
  // The earliest time to send pushes, where the server has asked to wait.
  #heldUntil: number | undefined = undefined;
  // The longest that the server has asked to wait; 0 while it has not, or what came too fast is done with.
  #pace = 0;
  #freeAt = 0;

  constructor(now: () => number) {
    this.#now = now;
  }

  /** A new socket carries nothing. */
  reset(): void {
    this.#sent = 0;
    this.#stale = [];
    this.#heldUntil = undefined;
    this.#pace = this.#freeAt = 0;
  }

  /**
   * When `release` lets pushes go out again; undefined where none are held, or an answer has to come before that: what
   * was on its way when it was told to come again is answered first, as that may ask to wait for longer.
   */
  get resumesAt(): number | undefined {
    return this.#stale.length > 0 ? undefined : this.#heldUntil;
  }

  /** Some time has passed. */
  release(): void {
    if (this.resumesAt !== undefined && this.#now() >= this.resumesAt) this.#heldUntil = undefined;
  }

  /** When a call or a message may go out; undefined for at once. */
  get freeAt(): number | undefined {
    return this.#now() < this.#freeAt ? this.#freeAt : undefined;
  }

  /** All that came too fast is done with. */
  end(): void {
    this.#pace = 0;
  }

  /** Returns the next push that is to be sent, if there is one. */
  next(pushes: readonly Pending[]): Pending | undefined {
    return this.#heldUntil === undefined && this.#sent < UNANSWERED ? pushes[this.#sent] : undefined;
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
   * few, it would refuse one where it lets a push come again: then each waits until it can be taken, as far behind what
   * was taken before as the server has asked for.
   */
  letPass(index: number): boolean {
    if (this.freeAt !== undefined) return false;
    if (this.#pace === 0) return this.has(index);
    if (index >= 0 || this.#heldUntil !== undefined) return false;
    this.#spent();
    return true;
  }

  /** The push at `index` has its answer; as answers come in order, so has all that was sent before it. */
  answered(index: number): void {
    if (index < this.#sent) this.#sent--;
    this.#stale = [];
    this.#spent();
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
    this.#heldUntil = Math.max(this.#heldUntil ?? 0, this.#now() + wait);
  }

  /** The server has taken something by this time. */
  #spent(): void {
    if (this.#pace > 0) this.#freeAt = this.#now() + this.#pace;
  }
}
