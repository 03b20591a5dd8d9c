/** Which pushes were sent on one socket, and which of them are to be sent again. */

import type { Pending } from "./pending.js";
import { UNANSWERED } from "./protocol.js";
import type { Nack } from "./protocol.js";

/** How many seconds to wait when the server does not say how long. */
const RETRY_AFTER = 1;
/** The least seconds between calls and messages, which cannot be sent again, while the server limits the rate. */
const SPACING = 0.1;

export class SendWindow {
  readonly #now: () => number;
  /** How many pushes, from the first on, were sent on this socket and have no answer. */
  #sent = 0;
  /**
   * How many may be on their way: one after a refusal, as all after that are to be sent again, and one more for each
   * push that is accepted.
   */
  #most = UNANSWERED;
  /** Refs of pushes on this socket that are to be sent again: their answers are ignored. */
  #stale: number[] = [];
  // The earliest time to send pushes, where the server has asked to wait.
  #heldUntil: number | undefined;
  // The longest wait that the server has asked for; 0 where it has not, or all that it refused is answered.
  #pace = 0;
  /** When `release` frees a call or message; undefined for at once. */
  freeAt: number | undefined;

  constructor(now: () => number) {
    this.#now = now;
  }

  /**
   * When `release` frees the pushes; undefined where none are held, or an answer has to come before that: what
   * was on its way when it was told to come again is answered first, as that may ask to wait for longer.
   */
  get resumesAt(): number | undefined {
    return this.#stale.length > 0 ? undefined : this.#heldUntil;
  }

  /** Ends the waits that are over. */
  release(): void {
    const isOver = (time = Infinity) => this.#now() >= time;
    if (isOver(this.resumesAt)) this.#heldUntil = undefined;
    if (isOver(this.freeAt)) this.freeAt = undefined;
  }

  /** All that was refused as too fast is answered. */
  end(): void {
    this.#pace = 0;
  }

  /** Returns the next push to send, if there is one. */
  next(pushes: readonly Pending[]): Pending | undefined {
    return this.#heldUntil === undefined && this.#sent < this.#most ? pushes[this.#sent] : undefined;
  }

  /** The next push is sent. */
  take(push: Pending): void {
    this.#sent++;
    push.sent = push.ops;
  }

  /** Tells whether the push at `index` is on its way. */
  has(index: number): boolean {
    return index < this.#sent;
  }

  /**
   * Tells whether a call or message made after the push at `index` may be sent; if so, it counts as sent. Unlike a
   * push, it cannot be sent again: while the server limits the rate, it waits for the answers to all pushes before it,
   * and for as long after the last frame that the server took as it has asked to wait.
   */
  letPass(index: number): boolean {
    if (this.freeAt !== undefined) return false;
    if (this.#pace === 0) return this.has(index);
    if (index >= 0 || this.#heldUntil !== undefined) return false;
    this.#spent();
    return true;
  }

  /** The push at `index` is answered; as answers come in order, so is all that was sent before it. */
  answered(index: number, isRefused: boolean): void {
    this.#most = isRefused ? 1 : Math.min(this.#most + 1, UNANSWERED);
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

  /** The server has not read the push `ref`, nor those after it: all from `index` on are to be sent again. */
  rewind(pushes: readonly Pending[], ref: number, index: number): void {
    const carried = pushes.slice(0, this.#sent).map((push) => push.ref);
    this.#stale.push(...carried.filter((each) => each > ref));
    this.#sent = Math.min(this.#sent, index);
  }

  hold(nack: Nack): void {
    const wait = nack.retry_after ?? RETRY_AFTER;
    this.#pace = Math.max(this.#pace, SPACING, wait);
    this.#heldUntil = Math.max(this.#heldUntil ?? 0, this.#now() + wait);
  }

  /** The server has just taken a frame. */
  #spent(): void {
    if (this.#pace > 0) this.freeAt = this.#now() + this.#pace;
  }
}
