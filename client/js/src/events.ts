/** What happens in a session, for those who wait for it; the state is read from the session. */

import type { PlaitError } from "./errors.js";
import type { Pending } from "./fold.js";
import type { AuthExpiring, Change, Event, Message, Result } from "./protocol.js";

export type SessionEvent =
  | { type: "joined" }
  | { type: "applied"; push: Pending; version: number }
  | { type: "refused"; push: Pending; error: PlaitError }
  | { type: "failed"; ref: number; error: PlaitError }
  | { type: "rejoin" }
  | { type: "stopped"; code: number; error: PlaitError }
  // As they came.
  | Change
  | Result
  | Event
  | Message
  | AuthExpiring;
