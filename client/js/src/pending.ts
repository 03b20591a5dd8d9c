/** A push without an answer, and a change of the shown state. */

import type { Document } from "./json.js";
import type { Op, Version } from "./protocol.js";

/** A push without an answer; it changes with the server's state, and keeps its identity until it is answered. */
export interface Pending {
  ref: number;
  /** The version on which the user made it. */
  readonly made: Version;
  /** The effect of the push on the confirmed state after the pushes before it. */
  ops: readonly Op[];
  /** The operations that were sent last; undefined if none were. */
  sent: readonly Op[] | undefined;
  /**
   * The last version on which all places of the push existed; set when one of them is gone. The push is then not shown.
   */
  lostOn: Version | undefined;
  /**
   * Whether the push was refused, or was made on an own push that is refused or lost: the server may not know of this,
   * and must not be asked.
   */
  isOrphan: boolean;
  /** Whether the server has dealt with the push, so that only the answer is missing. */
  isSettled: boolean;
  /** Whether the shown state includes the push. */
  isShown: boolean;
}

/** A change of the shown state. */
export interface ShownChange {
  before: Document;
  after: Document;
  /**
   * The operations from one state to the other; if a change is taken back, without values, and with unknown characters.
   */
  ops: readonly Op[];
  /** The push that was made; undefined for a change from the server. */
  push?: Pending | undefined;
  /** The refused push that is taken back. */
  refused?: Pending | undefined;
}
