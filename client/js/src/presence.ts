/** Who is here, by connection id. */

import type { Json } from "./json.js";
import { share } from "./json.js";
import type { PresenceDiff } from "./messages.js";

export type PresenceRecord = { readonly [connection: string]: Json };

/** Returns what is known behind a frame: the very record when it says nothing new, and entries as they were. */
export function merge(known: PresenceRecord, frame: PresenceDiff): PresenceRecord {
  if (frame.snapshot) return share(known, frame.snapshot);
  const next: Record<string, Json> = { ...known, ...frame.joined, ...frame.updated };
  for (const connection of frame.left ?? []) delete next[connection];
  return share(known, next);
}
