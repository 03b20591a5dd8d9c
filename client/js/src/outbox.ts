/** Messages on one socket: sent in their order, and again from the first that the server has refused. */

import type { Bytes, Outgoing } from "./messages.js";
import type { Message, Ping } from "./protocol.js";
import { UNANSWERED } from "./protocol.js";

/** After so many messages the server is asked how far it has taken them. */
const ASKED = UNANSWERED / 2;
/** What the server has not taken waits so many seconds when it does not say how long. */
const RETRY_AFTER = 1;

export class Outbox {
  /** Those of which it is not known that the server has taken them. */
  #sent: (Message | Bytes)[] = [];
  // How many it has taken on this socket.
  #taken = 0;
  #isCounted = false;
  // How many pings on this socket have no pong yet. Pongs come in the order of what they and errors answer.
  #asked = 0;
  /** The earliest time to send them again, where the server has refused one. */
  resumesAt: number | undefined = undefined;

  /** Whether it is not known of any that the server has taken it. */
  get isBusy(): boolean {
    return this.#sent.length > 0;
  }

  /** Whether another message may go out. */
  get isOpen(): boolean {
    return this.resumesAt === undefined && this.#sent.length < UNANSWERED;
  }

  /** When `resume` has something to send; never, while an answer has to come before that. */
  get due(): number {
    return this.#asked > 0 ? Infinity : (this.resumesAt ?? Infinity);
  }

  /** A new socket: what the last one was still to carry again is kept, as the server has taken none of it. */
  reset(): void {
    if (this.resumesAt === undefined) this.#sent = [];
    else this.resumesAt = 0;
    this.#taken = this.#asked = 0;
    this.#isCounted = false;
  }

  /** Returns what says that messages are counted, where that was not said; best said before it has to be. */
  count(): Ping[] {
    return this.#isCounted || this.resumesAt !== undefined ? [] : [this.#ping(this.#taken)];
  }

  /** Returns the frames that carry a message. */
  send(message: Message | Bytes): Outgoing[] {
    const first = this.count();
    this.#sent.push(message);
    return [...first, message, ...(this.#sent.length % ASKED === 0 ? [this.ask()] : [])];
  }

  /** Asks how far the messages were taken. */
  ask(): Ping {
    return this.#ping(this.#taken + this.#sent.length);
  }

  /** Takes a pong: the server has taken so many. */
  answered(taken: number): void {
    this.#asked = Math.max(0, this.#asked - 1);
    this.#confirm(taken);
  }

  /**
   * The server has refused the one after so many, and takes none of those after it.
   * Returns what is to be sent at once: a ping whose pong comes after all other refusals.
   */
  refused(taken: number, wait: number | null | undefined, now: number): Ping[] {
    const isFirst = this.resumesAt === undefined;
    this.#confirm(taken);
    this.resumesAt = Math.max(this.resumesAt ?? 0, now + (wait ?? RETRY_AFTER));
    return isFirst ? [this.ask()] : [];
  }

  /** Returns what is to be sent again by this time; nothing while more refusals may be on their way. */
  resume(now: number): Outgoing[] {
    if (now < this.due) return [];
    this.resumesAt = undefined;
    return [this.#ping(this.#taken), ...this.#sent, this.ask()];
  }

  #confirm(taken: number): void {
    this.#sent.splice(0, Math.max(0, taken - this.#taken));
    this.#taken = Math.max(this.#taken, taken);
  }

  #ping(messages: number): Ping {
    this.#isCounted = true;
    this.#asked++;
    return { type: "ping", messages };
  }
}
