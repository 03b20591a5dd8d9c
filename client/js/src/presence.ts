/** Who is here: what the connections of a thread let each other see. */

import type { Json } from "./json.js";
import { share } from "./json.js";
import type { Presence, PresenceDiff } from "./protocol.js";

/** By connection id. */
export type PresenceRecord = { readonly [connection: string]: Json };

export class Presences {
  #all: PresenceRecord = {};
  #own: Json = null;

  /** That of every connection; the very record, and its entries, as long as they are the same. */
  get all(): PresenceRecord {
    return this.#all;
  }

  /** Lets others see `data` of this client; returns the frame that says so. */
  set(data: Json): Presence {
    this.#own = data;
    return { type: "presence", data };
  }

  /** Returns what is to be said on a new socket. */
  again(): Presence[] {
    return this.#own === null ? [] : [{ type: "presence", data: this.#own }];
  }

  /** Takes in all of them, or what has changed. */
  receive({ snapshot, joined, updated, left = [] }: PresenceDiff): void {
    const next: Record<string, Json> = { ...(snapshot ?? this.#all), ...joined, ...updated };
    for (const connection of left) delete next[connection];
    this.#all = share(this.#all, next);
  }
}
