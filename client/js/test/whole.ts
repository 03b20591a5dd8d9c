/** The client's inner parts as a client with all options has them: texts, and lists compared closely. */

import { compare } from "../src/compare.js";
import { Keys } from "../src/elements.js";
import { Fold as SlimFold } from "../src/fold.js";
import type { Document, Json } from "../src/json.js";
import type { Parts } from "../src/parts.js";
import { diff as diffWith } from "../src/patch.js";
import type { ShownChange } from "../src/pending.js";
import type { Op } from "../src/protocol.js";
import { rebase as rebaseWith } from "../src/rebase.js";
import { Session as SlimSession } from "../src/session.js";
import type { SessionOptions } from "../src/session.js";
import { text } from "../src/text-part.js";
import { UndoHistory as SlimHistory } from "../src/undo.js";

export const PARTS: Parts = { compare, text };

export class Session extends SlimSession {
  constructor(options: SessionOptions) {
    super({ parts: PARTS, ...options });
  }
}

export class Fold extends SlimFold {
  constructor(onShown: (change: ShownChange) => void) {
    super(onShown, PARTS);
  }
}

export class UndoHistory extends SlimHistory {
  constructor(now: () => number) {
    super(now, PARTS);
  }
}

export function diff(old: Document, next: Json, keys = new Keys({}, [], PARTS), options = {}): Op[] {
  return diffWith(old, next, keys, options);
}

export function rebase(ops: readonly Op[], over: readonly Op[], document: Document): ReturnType<typeof rebaseWith> {
  return rebaseWith(ops, over, document, text);
}
