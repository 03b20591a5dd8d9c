/** The messages that a client has sent to a conversation, and that have no answer: no I/O. */

import { checkSize, isTooLarge } from "./messages.js";
import type { JsonObject } from "./json.js";
import { UNANSWERED } from "./protocol.js";
import type { Send, Unsent } from "./protocol.js";

/** The seconds to wait if the server names none. */
const RETRY_AFTER = 1;

/** A message that was sent here. */
export interface SentMessage {
  readonly part: string;
  readonly content: string;
  readonly key: string;
  readonly attachments: readonly JsonObject[];
  /** Its number on this socket; 0 while it is not under way. */
  ref: number;
}

/** The messages without an answer, in order; they are sent on one socket after the other until each has one. */
export class SentMessages {
  all: SentMessage[] = [];
  #nextRef = 1;
  // When messages that were refused as too fast are sent again; undefined if none was refused.
  #resumesAt: number | undefined;

  /** Starts with a new socket: nothing was sent on it. */
  reset(): void {
    for (const each of this.all) each.ref = 0;
    this.#nextRef = 1;
    this.#resumesAt = undefined;
  }

  /** Adds a message to be sent. Throws a PlaitError if it is too large. */
  add(message: SentMessage, maxFrame: number): void {
    checkSize(frameOf(message, this.#nextRef), maxFrame);
    this.all.push(message);
  }

  /** When there may be a message to send again; Infinity while answers must come first. */
  get due(): number {
    return this.#resumesAt === undefined || this.#isUnderWay ? Infinity : this.#resumesAt;
  }

  /** Returns the frames that may be sent now, and the messages too large for the socket, which are given up. */
  take(now: number, maxFrame: number): [frames: Send[], dropped: SentMessage[]] {
    const [frames, dropped]: [Send[], SentMessage[]] = [[], []];
    if (this.#resumesAt !== undefined) {
      if (now < this.due) return [frames, dropped];
      this.#resumesAt = undefined;
    }
    let count = this.all.filter(({ ref }) => ref > 0).length;
    for (const each of this.all) {
      if (each.ref > 0) continue;
      if (count >= UNANSWERED) break;
      const frame = frameOf(each, this.#nextRef);
      if (isTooLarge(frame, maxFrame)) dropped.push(each);
      else {
        each.ref = this.#nextRef++;
        count++;
        frames.push(frame);
      }
    }
    if (dropped.length > 0) this.all = this.all.filter((each) => !dropped.includes(each));
    return [frames, dropped];
  }

  /** Removes the message with a number, because it was answered, and returns it. */
  end(ref: number): SentMessage | undefined {
    const found = this.all.find((each) => each.ref === ref);
    if (found) this.all = this.all.filter((each) => each !== found);
    return found;
  }

  /** Sends a message again later if the answer asks for that; tells whether it does. */
  delay({ ref, code, retry_after: wait }: Unsent, now: number): boolean {
    const found = this.all.find((each) => each.ref === ref);
    const isGap = code === "gap";
    if (!found || (typeof wait !== "number" && !isGap)) return false;
    found.ref = 0;
    this.#nextRef = Math.min(this.#nextRef, ref);
    this.#resumesAt = Math.max(this.#resumesAt ?? 0, now + (isGap ? 0 : wait || RETRY_AFTER));
    return true;
  }

  get #isUnderWay(): boolean {
    return this.all.some(({ ref }) => ref > 0);
  }
}

/** Returns the frame that sends a message. */
function frameOf({ part, content, key, attachments }: SentMessage, ref: number): Send {
  return { type: "send", ref, part, content, key, ...(attachments.length > 0 && { attachments }) };
}
