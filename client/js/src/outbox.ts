/** Sends frames again that the server refused as too fast: messages in order, and the last presence and token. */

import type { Bytes, Outgoing } from "./messages.js";
import type { Message, Ping } from "./protocol.js";
import { UNANSWERED } from "./protocol.js";

/** After this many messages, a ping asks how many the server has taken. */
const PING_EVERY = UNANSWERED / 2;
/** The seconds to wait if the server names none. */
const RETRY_AFTER = 1;
/** The minimum seconds between two presences, or tokens, after a refusal; the server collects presences for as long. */
const SPACING = 0.05;
/** The minimum seconds between two presences. */
export const PRESENCE_SPACING = 0.025;

/** The messages on one socket. */
export class Outbox {
  // Messages that are not known to have been taken by the server.
  #sent: (Message | Bytes)[] = [];
  // The number that the server has taken on this socket.
  #taken = 0;
  #isCounted = false;
  // The number of pings on this socket without a pong. Pongs and errors come in the order of the frames that they
  // answer.
  #pings = 0;
  /** The earliest time to send refused messages again; undefined if none was refused. */
  resumesAt: number | undefined;

  /** Whether a message is not known to have been taken. */
  get isBusy(): boolean {
    return this.#sent.length > 0;
  }

  /** Whether another message may be sent. */
  get isOpen(): boolean {
    return this.resumesAt === undefined && this.#sent.length < UNANSWERED;
  }

  /** When `resume` has something to send; Infinity while a pong must come first. */
  get due(): number {
    return this.#pings > 0 ? Infinity : (this.resumesAt ?? Infinity);
  }

  /** Starts with a new socket: refused messages are kept, because the server has taken none of them. */
  reset(): void {
    if (this.resumesAt === undefined) this.#sent = [];
    else this.resumesAt = 0;
    this.#taken = this.#pings = 0;
    this.#isCounted = false;
  }

  /** Returns the ping that starts the count of messages, if it was not sent yet. */
  count(): Ping[] {
    return this.#isCounted || this.resumesAt !== undefined ? [] : [this.#ping(this.#taken)];
  }

  /** Returns the frames that send a message. */
  send(message: Message | Bytes): Outgoing[] {
    const first = this.count();
    this.#sent.push(message);
    return [...first, message, ...(this.#sent.length % PING_EVERY === 0 ? [this.ask()] : [])];
  }

  /** Returns a ping that asks how many messages were taken. */
  ask(): Ping {
    return this.#ping(this.#taken + this.#sent.length);
  }

  /** Handles a pong: the server has taken `taken` messages. */
  answered(taken: number): void {
    this.#pings = Math.max(0, this.#pings - 1);
    this.#confirm(taken);
  }

  /**
   * The server has refused the message after the first `taken`, and refuses all after it.
   * Returns a ping to send at once: its pong comes after all other refusals.
   */
  refused(taken: number, wait: number | null | undefined, now: number): Ping[] {
    const isFirst = this.resumesAt === undefined;
    this.#confirm(taken);
    this.resumesAt = Math.max(this.resumesAt ?? 0, now + (wait ?? RETRY_AFTER));
    return isFirst ? [this.ask()] : [];
  }

  /** Returns the frames to send again now; none while more refusals may come. */
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
    this.#pings++;
    return { type: "ping", messages };
  }
}

/** Frames on one socket that replace each other: the last one is sent as soon as the server takes it. */
export class Latest<Frame> {
  #frame: Frame | undefined;
  #isWaiting = false;
  #freeAt = 0;
  #spacing: number;

  /** `spacing` is the minimum seconds between two frames. */
  constructor(spacing = 0) {
    this.#spacing = spacing;
  }

  /** Sets the frame to send next. */
  put(frame: Frame): void {
    this.#frame = frame;
    this.#isWaiting = true;
  }

  /** Returns the frame to send by now, if there is one. */
  take(now: number): Frame | undefined {
    if (now < this.due) return undefined;
    this.#isWaiting = false;
    this.#freeAt = now + this.#spacing;
    return this.#frame;
  }

  /** The server has refused a frame, and takes the next one after `wait` seconds. */
  refused(wait: number | null | undefined, now: number): void {
    this.#isWaiting = this.#frame !== undefined;
    this.#spacing = SPACING;
    this.#freeAt = Math.max(this.#freeAt, now + Math.max(wait ?? RETRY_AFTER, SPACING));
  }

  /** When the next frame may be sent; Infinity if none waits. */
  get due(): number {
    return this.#isWaiting ? this.#freeAt : Infinity;
  }
}
