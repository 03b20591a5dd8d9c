/** The presences of a thread's connections. */

import type { Dropped } from "./events.js";
import { freeze, share } from "./json.js";
import type { Json } from "./json.js";
import { checkSize, isTooLarge, tooLarge } from "./messages.js";
import type { Presence, PresenceDiff } from "./protocol.js";

/** The presence of each connection, by its id. */
export type PresenceRecord = { readonly [connection: string]: Json };

export class Presences {
  /** The presence of every connection; equal records and entries stay the same objects. */
  all: PresenceRecord = {};
  /** The presence of this client, null for nothing. */
  own: Json = null;
  /** Whether it was reported that the own presence is too large for a socket. */
  #isTold = false;

  /** Sets this client's presence; returns the frame to send. Throws a PlaitError if it is too large. */
  set(data: Json, maxFrame: number): Presence {
    const frame = checkSize<Presence>({ type: "presence", data }, maxFrame, "presence");
    this.own = data;
    this.#isTold = false;
    return frame;
  }

  /** Returns the frame to send on a new socket, if any; a presence too large for the socket is reported once. */
  resend(maxFrame: number): Presence | Dropped | undefined {
    if (this.own === null) return undefined;
    const frame: Presence = { type: "presence", data: this.own };
    if (!isTooLarge(frame, maxFrame)) return frame;
    if (this.#isTold) return undefined;
    this.#isTold = true;
    return { type: "dropped", error: tooLarge("presence") };
  }

  /** Forgets the others' presences: the answer to a join without a version does not mention that there are none. */
  forget(): void {
    this.all = {};
  }

  /** Applies a frame: all presences, or the changed ones. */
  receive({ snapshot, joined, updated, left = [] }: PresenceDiff): void {
    const next: Record<string, Json> = { ...(snapshot ?? this.all), ...joined, ...updated };
    for (const connection of left) delete next[connection];
    this.all = freeze(share(this.all, next));
  }
}
