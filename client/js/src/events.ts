/** What happens in a session, for those who wait for it; the state is read from the session. */

import type { PlaitError } from "./errors.js";
import type { Pending } from "./fold.js";
import type { AuthExpiring, Event, Message, Op, Result } from "./protocol.js";

/** The server has carried out a push. */
export interface Applied {
  type: "applied";
  push: Pending;
  version: number;
}

/** The server does not take a push, or would not. */
export interface Refused {
  type: "refused";
  push: Pending;
  error: PlaitError;
}

/** The server's state has changed, by others; several changes that came as one have no source. */
export interface Changed {
  type: "change";
  version: number;
  ops: readonly Op[];
  source: string | undefined;
}

/** A call has no result. */
export interface Failed {
  type: "failed";
  ref: number;
  error: PlaitError;
}

/** A message or a presence that was to be sent with the next join is not. */
export interface Dropped {
  type: "dropped";
  error: PlaitError;
}

/** What is not sent, or was in vain. */
export type Unsent = Refused | Failed | Dropped;

export type SessionEvent =
  // There is a state that another life has left.
  | { type: "restored" }
  | { type: "joined" }
  | Applied
  | Unsent
  | { type: "rejoin" }
  | { type: "stopped"; code: number; error: PlaitError }
  | Changed
  // As they came.
  | Result
  | Event
  | Message
  | AuthExpiring;
