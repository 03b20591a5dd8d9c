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
  // How many it may have taken when others were sent again on this socket, and whether it has refused one of those since.
  #resumedFrom = -1;
  #isRefused = false;
  /** When to send them again, where the server has refused one. */
  resumesAt: number | undefined = undefined;

  /** Whether it is not known of any that the server has taken it. */
  get isBusy(): boolean {
    return this.#sent.length > 0;
  }

  /** Whether another message may go out. */
  get isOpen(): boolean {
    return this.resumesAt === undefined && this.#sent.length < UNANSWERED;
  }

  /** A new socket: what the last one was still to carry again is kept, if the server has taken none of it. */
  reset(): void {
    if (!this.#isRefused) this.#sent = [];
    this.resumesAt = this.#isRefused ? 0 : undefined;
    this.#taken = 0;
    this.#resumedFrom = -1;
    this.#isCounted = false;
  }

  /** Returns what says that messages are counted, where that was not said; best said before it has to be. */
  count(): Ping[] {
    return this.#isCounted || this.resumesAt !== undefined ? [] : [this.#count()];
  }

  /** Returns the frames that carry a message. */
  send(message: Message | Bytes): Outgoing[] {
    const first = this.count();
    this.#sent.push(message);
    return [...first, message, ...(this.#sent.length % ASKED === 0 ? [this.ask()] : [])];
  }

  /** Asks how far the messages were taken. */
  ask(): Ping {
    return { type: "ping", messages: this.#taken + this.#sent.length };
  }

  /** The server has taken so many. */
  confirm(taken: number): void {
    this.#sent.splice(0, Math.max(0, taken - this.#taken));
    this.#taken = Math.max(this.#taken, taken);
  }

  /** The server has refused the one behind so many, and takes none of those behind it. */
  refused(taken: number, wait: number | null | undefined, now: number): void {
    this.confirm(taken);
    // One that is late may be of what was sent before that, of which some is taken by now.
    this.#isRefused ||= taken > this.#resumedFrom;
    this.resumesAt = Math.max(this.resumesAt ?? 0, now + (wait ?? RETRY_AFTER));
  }

  /** Returns what is to be sent again by this time. */
  resume(now: number): Outgoing[] {
    if (this.resumesAt === undefined || now < this.resumesAt) return [];
    this.resumesAt = undefined;
    this.#resumedFrom = this.#taken + (this.#isRefused ? 0 : this.#sent.length);
    this.#isRefused = false;
    return [this.#count(), ...this.#sent, this.ask()];
  }

  #count(): Ping {
    this.#isCounted = true;
    return { type: "ping", messages: this.#taken };
  }
}
