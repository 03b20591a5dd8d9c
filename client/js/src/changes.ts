/** Changes of others, as they come: one, several as one, or a state in their place. */

import type { Changed } from "./events.js";
import type { Fold } from "./fold.js";
import { diff } from "./patch.js";
import type { Change, Changes, Snapshot } from "./protocol.js";

/** Takes in what has changed, and returns it. Throws a PatchError, and changes nothing, where something is missing. */
export function takeChange(fold: Fold, frame: Change | Changes | Snapshot): Changed {
  if (frame.type === "change") {
    const { version, ops, source } = frame;
    fold.follow(version - 1, version, ops);
    return { type: "change", version, ops, source };
  }
  if (frame.type === "changes") {
    fold.follow(frame.from, frame.to, frame.ops);
    return { type: "change", version: frame.to, ops: frame.ops, source: undefined };
  }
  const { epoch, version, state } = frame;
  const ops = diff(fold.confirmed, state, fold.keys);
  fold.replace([epoch, version], state);
  return { type: "change", version, ops, source: undefined };
}
