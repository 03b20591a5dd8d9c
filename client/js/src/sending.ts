/** What goes out on a socket, in its order, and what waits until the server takes more. */

import { Calls } from "./calls.js";
import type { Unsent } from "./events.js";
import { Latest } from "./latest.js";
import type { Bytes, Outgoing } from "./messages.js";
import { Outbox } from "./outbox.js";
import type { Auth, Error as Failure, Message, Ping, Presence } from "./protocol.js";
import type { Pushes } from "./pushes.js";

export class Sending {
  readonly calls = new Calls();
  readonly presence = new Latest<Presence>();
  readonly auth = new Latest<Auth>();
  readonly outbox = new Outbox();
  /** In bytes, as it was when the thread was joined last. */
  maxFrame = Infinity;
  readonly #pushes: Pushes;
  readonly #now: () => number;
  #isFinishing = false;

  constructor(pushes: Pushes, now: () => number) {
    this.#pushes = pushes;
    this.#now = now;
  }

  /** Whether something waits to be sent, or nothing more will and some message is not known to be taken. */
  get isBusy(): boolean {
    const { isBusy, resumesAt } = this.outbox;
    return this.calls.first !== undefined || (isBusy && (this.#isFinishing || resumesAt !== undefined));
  }

  /** When there may be something to send. */
  get due(): number {
    return Math.min(this.#pushes.resumesAt(this.calls.first), this.outbox.due, this.presence.due, this.auth.due);
  }

  /** A new socket has carried nothing. */
  reset(): void {
    for (const each of [this.#pushes, this.outbox, this.presence, this.auth]) each.reset();
  }

  /**
   * Returns what is to be sent at once where an error says that something came too fast, undefined for another error.
   * What it refuses is sent again later.
   */
  takeRefusal({ refused, messages, retry_after: wait }: Failure): Ping[] | undefined {
    const now = this.#now();
    if (refused === "message") return this.outbox.refused(messages ?? 0, wait, now);
    if (refused === "presence") this.presence.refused(wait, now);
    else if (refused === "auth") this.auth.refused(wait, now);
    else return undefined;
    return [];
  }

  /** Nothing more will be asked for; returns what asks whether all that was sent was taken. */
  finish(): Ping | undefined {
    this.#isFinishing = true;
    const { isBusy, resumesAt } = this.outbox;
    // What is sent again is asked about behind that.
    return isBusy && resumesAt === undefined ? this.outbox.ask() : undefined;
  }

  /** Returns what may go out by this time: pushes, and what was waiting for them before those behind it. */
  take(): (Outgoing | Unsent)[] {
    const [calls, pushes, outbox, now] = [this.calls, this.#pushes, this.outbox, this.#now()];
    const latest = [this.presence.take(now), this.auth.take(now)].filter((frame) => frame !== undefined);
    const out: (Outgoing | Unsent)[] = [...latest, ...outbox.resume(now)];
    // What is made behind messages that are to be sent again waits for those.
    const nextPush = () => (outbox.resumesAt === undefined ? pushes.next(this.maxFrame, calls.first) : undefined);
    const next = () => calls.next(this.maxFrame, pushes, outbox) ?? nextPush();
    let hasMessages = false;
    for (let each = next(); each; each = next()) {
      if (!isMessage(each)) out.push(each);
      else {
        hasMessages = true;
        out.push(...outbox.send(each));
      }
    }
    if (hasMessages && this.#isFinishing) out.push(outbox.ask());
    return out;
  }
}

function isMessage(frame: Outgoing | Unsent): frame is Message | Bytes {
  return frame.type === "message" || frame.type === "bytes";
}
