/** A push without an answer, and a change of what is shown. */

import type { Document } from "./json.js";
import type { Op, Version } from "./protocol.js";

/** A push without an answer; it changes as the server's state does, and keeps its identity until it is answered. */
export interface Pending {
  ref: number;
  /** The version on which the user made it. */
  readonly made: Version;
  /** What it does to the confirmed state after the pushes before it. */
  ops: readonly Op[];
  /** What was sent last; undefined as long as nothing was. */
  sent: readonly Op[] | undefined;
  /** A place that it leads into is gone: the last version on which it stood. It is left out of what is shown. */
  lostOn: Version | undefined;
  /**
   * It was refused, or made on an own push that is refused or lost: the server, which may know nothing of that, is not
   * to be asked.
   */
  isOrphan: boolean;
  /** The server's state has it, or does without it: only its answer is to come. */
  isSettled: boolean;
  /** Whether it is shown; else it is left out. */
  isShown: boolean;
}

/** A change of what is shown. */
export interface ShownChange {
  before: Document;
  after: Document;
  /** What leads from one to the other; where something is taken back, without values, and with unknown characters. */
  ops: readonly Op[];
  /** The push that was made; undefined for what the server has said. */
  push?: Pending | undefined;
  /** The refused push that is taken back. */
  refused?: Pending | undefined;
}
