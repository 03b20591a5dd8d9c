/** The events of a session for its owner; the owner reads the state from the session. */

import type { PlaitError } from "./errors.js";
import type { Fold } from "./fold.js";
import type { Pending } from "./pending.js";
import { diff } from "./patch.js";
import type { AuthExpiring, Change, Changes, Event, Message, Op, Result, Snapshot } from "./protocol.js";

/** The server has applied a push. */
export interface Applied {
  type: "applied";
  push: Pending;
  version: number;
}

/** A push was refused by the server, or by the client in its place. */
export interface Refused {
  type: "refused";
  push: Pending;
  error: PlaitError;
}

/** Others have changed the state; several changes that were sent as one have no source. */
export interface Changed {
  type: "change";
  version: number;
  ops: readonly Op[];
  source: string | undefined;
}

/** A call has failed. */
export interface Failed {
  type: "failed";
  ref: number;
  error: PlaitError;
}

/** A message or a presence that waited for the join is not sent. */
export interface Dropped {
  type: "dropped";
  error: PlaitError;
}

/** A frame that was not sent, or got no result. */
export type Unsent = Refused | Failed | Dropped;

export type SessionEvent =
  // The state that the page before has kept is shown.
  | { type: "restored" }
  | { type: "joined" }
  | Applied
  | Unsent
  // The socket must be replaced.
  | { type: "rejoin" }
  | { type: "stopped"; code: number; error: PlaitError }
  | Changed
  // Frames, passed on unchanged.
  | Result
  | Event
  | Message
  | AuthExpiring;

/** Applies a frame with others' changes, and returns the event. Throws a PatchError, and changes nothing, on a gap. */
export function applyChange(fold: Fold, frame: Change | Changes | Snapshot, source?: string): Changed {
  if (frame.type === "snapshot") {
    const { epoch, version, state } = frame;
    const ops = diff(fold.confirmed, state, fold.keys);
    fold.replace([epoch, version], state);
    return { type: "change", version, ops, source };
  }
  const [from, to] = frame.type === "change" ? [frame.version - 1, frame.version] : [frame.from, frame.to];
  fold.follow(from, to, frame.ops);
  return { type: "change", version: to, ops: frame.ops, source };
}
