/**
 * One part of a thread that a client has opened: no I/O.
 *
 * The same as `opened_part.py` of the Python client, with the same names.
 */

import type { Close, Open, Page, Part, Unopened } from "./protocol.js";
import type { SentMessage } from "./sent-messages.js";

/** The number of items of a page by default. */
const PAGE = 50;

/**
 * Asks for a part, and follows its changes.
 *
 * After a reconnect the part is opened again, and gets the missed changes. Frames that come between an Open and its
 * page are held back.
 */
export abstract class OpenedPart {
  readonly part: string;
  /** Why the part cannot be opened. */
  error: Unopened | undefined;
  protected limit = PAGE;
  // Whether the socket reports changes.
  protected isFollowing = false;
  // The revision of the known items; undefined before the first page, and when the history has begun again.
  #revision: number | undefined;
  #epoch: string | undefined;
  #isWanted = false;
  #awaits: "page" | "older" | undefined;
  #leaves = false;
  #held: Part[] = [];
  // When a refused Open may be sent again.
  #resumesAt = 0;

  constructor(part: string) {
    this.part = part;
  }

  /** Whether the part was opened. */
  get isWanted(): boolean {
    return this.#isWanted;
  }

  /** Whether a page has come. */
  get isReady(): boolean {
    return this.#revision !== undefined;
  }

  /** Whether items that the server has are still to come with a page. */
  get keepsAnswered(): boolean {
    return this.#isWanted && !(this.isFollowing && this.#awaits === undefined);
  }

  /** Returns the known items in the form in which they are shown, with the items that are being sent. */
  abstract show(sent: readonly SentMessage[]): readonly unknown[];

  // Requests

  /** Asks for the newest page, and all changes. */
  open(limit?: number): void {
    this.limit = limit ?? this.limit;
    this.#isWanted = true;
    this.error = undefined;
  }

  /** Stops following, and forgets all items. */
  close(): void {
    this.#leaves ||= this.isFollowing || this.#awaits !== undefined;
    this.#isWanted = this.isFollowing = false;
    this.#awaits = this.#revision = this.error = undefined;
  }

  // The socket

  /** Starts with a new socket: nothing was sent on it, or refused. */
  reset(): void {
    this.isFollowing = this.#leaves = false;
    this.#awaits = this.error = undefined;
    this.#held = [];
    this.#resumesAt = 0;
  }

  /** Notes that the thread is joined; items of another epoch are shown until the page comes. */
  join(epoch: string): void {
    if (epoch !== this.#epoch) this.#revision = undefined;
    this.#epoch = epoch;
  }

  /** When there may be a frame to send. */
  get due(): number {
    return this.#next ? this.#resumesAt : Infinity;
  }

  /** Returns the frames that may be sent now. */
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

  /** Takes in a frame; tells whether the shown items may have changed. */
  receive(frame: Page | Part | Unopened, now: number): boolean {
    if (frame.type === "unopened") return this.#refused(frame, now);
    if (frame.type === "page") return this.#turn(frame);
    if (this.#awaits === undefined) return this.isFollowing && this.follow(frame);
    this.#held.push(frame);
    return false;
  }

  // Inside

  /** Takes in a page. */
  protected abstract applyPage(page: Page): void;

  /** Applies a change; returns false if it does not fit. */
  protected abstract apply(frame: Part): boolean;

  /** Keeps the reason why the part cannot be opened, or an older page cannot be read. */
  protected fail(frame: Unopened, _isOlder: boolean): void {
    this.error = frame;
  }

  /** Returns the request for the older page, if one is wanted. */
  protected nextOlder(): Open | undefined {
    return undefined;
  }

  /** Applies a change, unless the page has it; opens the part again if an earlier change is missing. */
  protected follow(frame: Part): boolean {
    const revision = this.#revision as number;
    if (frame.op === "missed") return (this.isFollowing = false);
    if (frame.revision <= revision) return false;
    if (frame.revision > revision + 1 || !this.apply(frame)) return (this.isFollowing = false);
    this.#revision = frame.revision;
    return true;
  }

  /** Returns the next request. */
  get #next(): Open | undefined {
    if (!this.#isWanted || this.#awaits !== undefined || this.error) return undefined;
    if (this.isFollowing) return this.nextOlder();
    const since = this.#revision;
    return { type: "open", part: this.part, ...(since !== undefined && { since }), ...limited(this.limit) };
  }

  #turn(page: Page): boolean {
    const isOlder = typeof page.before === "number";
    if (this.#awaits !== (isOlder ? "older" : "page")) return false; // It was closed since.
    this.#awaits = undefined;
    if (!isOlder) {
      this.isFollowing = true;
      this.#revision = page.revision;
    }
    this.applyPage(page);
    this.#release();
    return true;
  }

  #refused(frame: Unopened, now: number): boolean {
    if (this.#awaits === undefined) return false;
    const isOlder = this.#awaits === "older";
    this.#awaits = undefined;
    if (typeof frame.retry_after === "number") this.#resumesAt = now + frame.retry_after;
    else this.fail(frame, isOlder);
    this.#release();
    return true;
  }

  /** Applies the frames that were held back. */
  #release(): void {
    for (const frame of this.#held.splice(0)) if (this.isFollowing) this.follow(frame);
  }
}

/** Returns the limit of a request for a page. */
export function limited(limit: number): { limit?: number } {
  return limit === PAGE ? {} : { limit };
}
