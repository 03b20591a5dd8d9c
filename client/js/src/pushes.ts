/** The pushes of one client: their refs, the pushes to send, and the answers. */

import { PlaitError, errorOf } from "./errors.js";
import type { Applied, Refused } from "./events.js";
import { stringify } from "./exact.js";
import { Fold } from "./fold.js";
import type { Pending, ShownChange } from "./pending.js";
import { isEqual, isWellFormed } from "./json.js";
import { isTooLarge, tooLarge } from "./messages.js";
import type { Parts } from "./parts.js";
import { PatchError } from "./patch.js";
import { byteLength } from "./platform.js";
import type { Ack, Joined, Nack, Op, Push, Version } from "./protocol.js";
import { SendWindow } from "./window.js";

/** No server refuses a push of this many bytes as too large. */
const LARGE = 64 * 1024;

/** A call or message, which must not overtake the push that was made before it. */
export interface Follower {
  after: Pending | undefined;
}

export class Pushes {
  /** The client's id; the server identifies a push by it and its ref. */
  client: string;
  readonly fold: Fold;
  readonly #now: () => number;
  #window: SendWindow;
  /** The ref of the next push. */
  next = 1;
  // The push that was probably too large, unless the next join says that it was answered.
  #suspect: Pending | undefined;
  /** Whether anything has changed since the pushes were kept in a storage, and the version of the kept pushes. */
  isDirty = false;
  keptAt: Version | undefined;

  constructor(client: string, now: () => number, onShown?: (change: ShownChange) => void, parts: Parts = {}) {
    this.client = client;
    this.fold = new Fold(onShown, parts);
    this.#now = now;
    this.#window = new SendWindow(now);
  }

  get all(): readonly Pending[] {
    return this.fold.pushes;
  }

  /** When to send again, if the server has asked to wait; `waiting` may have to wait longer. */
  resumesAt(waiting: Follower | undefined): number {
    const { resumesAt = Infinity, freeAt = Infinity } = this.#window;
    return Math.min(resumesAt, waiting ? freeAt : Infinity);
  }

  // Sending

  /** Adds a push of operations on the shown state. Throws a PatchError, and changes nothing, if they do not fit. */
  add(ops: readonly Op[]): Pending {
    for (const { path } of ops) {
      if (!isWellFormed(path)) throw new PatchError("half a surrogate pair cannot be sent");
    }
    const push = this.fold.add(this.next, ops);
    this.next++;
    this.isDirty = true;
    return push;
  }

  /**
   * Returns the next push that may be sent, if any: its frame, or its refusal in the server's place. No push overtakes
   * `waiting`.
   */
  take(maxFrame: number, waiting: Follower | undefined): Push | Refused | undefined {
    const suspect = this.#suspect;
    this.#suspect = undefined;
    if (suspect && !suspect.isSettled) return this.#refuse(suspect, tooLarge("change"));
    if (waiting && this.#window.has(this.#indexOf(waiting))) return undefined;
    const push = this.#window.next(this.all);
    if (push === undefined) {
      if (this.all.length === 0 && !waiting) this.#window.end();
      return undefined;
    }
    const frame = this.#frame(push);
    if (!push.isSettled) {
      if (push.isOrphan) return this.#refuse(push, new PlaitError("conflict", "what it was made on was refused"));
      if (isTooLarge(frame, maxFrame)) return this.#refuse(push, tooLarge("change"));
    }
    this.#window.take(push);
    return frame;
  }

  /** Tells whether a call or message may be sent; if so, it counts as sent. */
  letPass(waiting: Follower): boolean {
    return this.#window.letPass(this.#indexOf(waiting));
  }

  /** Returns the index of the push that the follower must follow; -1 if all pushes before it are answered. */
  #indexOf({ after }: Follower): number {
    return after ? this.all.indexOf(after) : -1;
  }

  #frame({ ref, made, ops, lostOn, isSettled }: Pending): Push {
    const answered = (this.all[0] as Pending).ref - 1;
    // A push whose place is gone must not find a place in the state that is known now.
    const base = lostOn ?? (this.fold.at as Version);
    const isMoved = !isEqual(made, base);
    return {
      type: "push",
      ref,
      base,
      ...(isMoved && { made }),
      ...(answered < ref - 1 && { answered }),
      // The server knows a settled push, and is only asked for its answer.
      ops: isSettled ? [] : ops,
    };
  }

  /** Starts with a new socket: nothing was sent on it. */
  reset(): void {
    this.#window = new SendWindow(this.#now);
  }

  /** Ends the waits that are over. */
  release(): void {
    this.#window.release();
  }

  // Pushes that the server has not seen, and must not see

  /** Notes that the server has closed the socket over a frame's size: probably the largest push, if it is large. */
  suspect(): void {
    let largest = LARGE;
    for (const push of this.all) {
      if (!push.sent || push.isSettled) continue;
      const size = byteLength(stringify(push.sent));
      if (size > largest) [largest, this.#suspect] = [size, push];
    }
  }

  /** Refuses a push, in the server's place, that the server has not seen. */
  #refuse(push: Pending, error: PlaitError): Refused {
    const open = this.all.filter((each) => !each.isSettled);
    this.fold.refuse(push);
    this.#renumber(
      open.filter((each) => each !== push),
      (open[0] as Pending).ref,
    );
    return { type: "refused", push, error };
  }

  // Answers of the server

  /** Takes in the answer to a join. Throws a PatchError if missed changes are missing. */
  join(frame: Joined): void {
    this.#settle(frame.last_ref ?? 0);
    this.fold.join(frame);
  }

  /**
   * Settles all pushes up to `lastRef`, which the server has answered. A push that was never sent cannot be among them:
   * this client has used its number in another life.
   */
  #settle(lastRef: number): void {
    this.next = Math.max(this.next, lastRef + 1);
    // The server does not store that a push changed nothing. Once the server has forgotten such a push, it would take a
    // push that lost its place as made without it, and might find another place for that push.
    const [first] = this.all;
    if (first && lastRef < first.ref - 1) for (const push of this.all) push.isOrphan ||= push.lostOn !== undefined;
    const unsent = this.all.filter((push) => push.sent === undefined);
    if (unsent.some((push) => push.ref <= lastRef)) {
      const sent = this.all.filter((push) => push.sent !== undefined);
      this.#renumber(unsent, Math.max(lastRef, ...sent.map((push) => push.ref)) + 1);
    }
    this.isDirty = true;
  }

  /** Takes an ack; returns its event, undefined if its change was known. Throws a PatchError for a gap. */
  ack({ ref, version, ops }: Ack): Applied | undefined {
    const push = this.all.find((each) => each.ref === ref);
    const [epoch, known] = this.fold.at as Version;
    // A settled push that was carried out was a part of the changes in a join.
    if (version > known && !push?.isSettled) {
      const applied = ops ?? push?.sent;
      if (version > known + 1 || applied === undefined) throw new PatchError("changes are missing");
      const at = [epoch, version] as const;
      if (push) this.#answer(push, () => this.fold.answered(at, push, applied));
      else this.fold.advance(at, applied);
    } else if (push) this.#answer(push, () => this.fold.drop(push));
    return push && { type: "applied", push, version };
  }

  /** Takes a nack; returns the refusal, undefined if the push goes on, or was not asked about. */
  nack(frame: Nack): Refused | undefined {
    const isUnseen = frame.code === "rate_limited" || (frame.code === "gap" && typeof frame.expected === "number");
    if (isUnseen && this.#window.isStale(frame)) return undefined;
    const index = this.all.findIndex((push) => push.ref === frame.ref);
    const push = this.all[index];
    if (push === undefined) return undefined;
    if (!isUnseen) {
      this.#answer(push, () => this.fold.refuse(push), !push.isSettled);
      return { type: "refused", push, error: errorOf(frame) };
    }
    if (frame.code === "gap") this.#sendFrom(frame.expected as number, frame.ref);
    else {
      this.#window.rewind(this.all, frame.ref, index);
      this.#window.hold(frame);
    }
    return undefined;
  }

  #sendFrom(expected: number, nacked: number): void {
    const index = this.all.findIndex((push) => push.ref === expected);
    const open = this.all.filter((push) => !push.isSettled);
    this.#window.rewind(this.all, nacked, index < 0 ? this.all.length - open.length : index);
    if (index < 0) this.#renumber(open, expected);
  }

  #renumber(pushes: readonly Pending[], start: number): void {
    pushes.forEach((push, offset) => (push.ref = start + offset));
    this.next = start + pushes.length;
    this.isDirty = true;
  }

  #answer(push: Pending, change: () => void, isRefused = false): void {
    const index = this.all.indexOf(push);
    change();
    this.#window.answered(index, isRefused);
    this.isDirty = true;
  }
}
