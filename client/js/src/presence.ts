/** Who is here: what the connections of a thread let each other see. */

import type { Dropped } from "./events.js";
import { freeze } from "./frozen.js";
import type { Json } from "./json.js";
import { share } from "./json.js";
import type { Presence, PresenceDiff } from "./protocol.js";
import { isTooLarge, tooLarge } from "./size.js";

/** By connection id. */
export type PresenceRecord = { readonly [connection: string]: Json };

export class Presences {
  #all: PresenceRecord = {};
  #own: Json = null;

  /** That of every connection; the very record, and its entries, as long as they are the same. */
  get all(): PresenceRecord {
    return this.#all;
  }

  /** Lets others see `data` of this client; returns the frame that says so. Throws a PlaitError when it is too large. */
  set(data: Json, maxFrame: number): Presence {
    const frame: Presence = { type: "presence", data };
    if (isTooLarge(frame, maxFrame)) throw tooLarge("presence");
    this.#own = data;
    return frame;
  }

  /** Returns what is to be said on a new socket, if anything is; what has turned out to be too large is forgotten. */
  again(maxFrame: number): Presence | Dropped | undefined {
    if (this.#own === null) return undefined;
    const frame: Presence = { type: "presence", data: this.#own };
    if (!isTooLarge(frame, maxFrame)) return frame;
    this.#own = null;
    return { type: "dropped", error: tooLarge("presence") };
  }

  /** Knows of nobody: who joins without a state that it has is not told that nobody is here. */
  forget(): void {
    this.#all = {};
  }

  /** Takes in all of them, or what has changed. */
  receive({ snapshot, joined, updated, left = [] }: PresenceDiff): void {
    const next: Record<string, Json> = { ...(snapshot ?? this.#all), ...joined, ...updated };
    for (const connection of left) delete next[connection];
    this.#all = freeze(share(this.#all, next));
  }
}
