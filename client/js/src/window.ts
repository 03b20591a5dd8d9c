/** Which pushes were sent on one socket, and which of them must be sent again. */

import type { Pending } from "./pending.js";
import { UNANSWERED } from "./protocol.js";
import type { Nack } from "./protocol.js";

/** The seconds to wait if the server names none. */
const RETRY_AFTER = 1;
/** The minimum seconds between calls and messages, which cannot be sent again, while the server limits the rate. */
const SPACING = 0.1;

export class SendWindow {
  readonly #now: () => number;
  /** The number of pushes, from the first on, that were sent on this socket and have no answer. */
  #sent = 0;
  /**
   * The maximum number of pushes under way: one after a refusal, because all later ones are sent again, and one more
   * for each accepted push.
   */
  #most = UNANSWERED;
  /** Refs of pushes on this socket that must be sent again: their answers are ignored. */
  #stale: number[] = [];
  // The earliest time to send pushes, if the server has asked to wait.
  #heldUntil: number | undefined;
  // The longest wait that the server has asked for; 0 if it has not, or if all refused pushes are answered.
  #pace = 0;
  /** When `release` frees a call or message; undefined for at once. */
  freeAt: number | undefined;

  constructor(now: () => number) {
    this.#now = now;
  }

  /**
   * When `release` frees the pushes; undefined if none are held, or an answer must come first: pushes that were under
   * way at the refusal are answered before that, and their answers may ask for a longer wait.
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

  /** Notes that all pushes that were refused as too fast are answered. */
  end(): void {
    this.#pace = 0;
  }

  /** Returns the next push to send, if there is one. */
  next(pushes: readonly Pending[]): Pending | undefined {
    return this.#heldUntil === undefined && this.#sent < this.#most ? pushes[this.#sent] : undefined;
  }

  /** Notes that the next push is sent. */
  take(push: Pending): void {
    this.#sent++;
    push.sent = push.ops;
  }

  /** Tells whether the push at `index` is under way. */
  has(index: number): boolean {
    return index < this.#sent;
  }

  /**
   * Tells whether a call or message made after the push at `index` may be sent; if so, it counts as sent. Unlike a
   * push, a call or message cannot be sent again: while the server limits the rate, it waits for the answers to all
   * pushes before it, and after the last frame that the server took, for the time that the server has asked for.
   */
  letPass(index: number): boolean {
    if (this.freeAt !== undefined) return false;
    if (this.#pace === 0) return this.has(index);
    if (index >= 0 || this.#heldUntil !== undefined) return false;
    this.#spent();
    return true;
  }

  /** Notes that the push at `index` is answered; answers come in order, so all pushes before it are, too. */
  answered(index: number, isRefused: boolean): void {
    this.#most = isRefused ? 1 : Math.min(this.#most + 1, UNANSWERED);
    if (index < this.#sent) this.#sent--;
    this.#stale = [];
    this.#spent();
  }

  /** Tells whether a nack is for a push that is sent again anyway. */
  isStale(nack: Nack): boolean {
    const index = this.#stale.indexOf(nack.ref);
    if (index < 0) return false;
    this.#stale.splice(0, index + 1);
    if (nack.code === "rate_limited") this.hold(nack);
    return true;
  }

  /** Sends all pushes from `index` on again: the server has not read the push `ref`, nor those after it. */
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

  /** Notes that the server has taken a frame. */
  #spent(): void {
    if (this.#pace > 0) this.freeAt = this.#now() + this.#pace;
  }
}
