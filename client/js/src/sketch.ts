/** What is made of an initial state before the thread has told its own: shown at once, and kept on top of that. */

import type { Keys } from "./align.js";
import { difference } from "./fold.js";
import { PatchError, apply } from "./patch.js";
import type { Document } from "./patch.js";
import type { Op } from "./protocol.js";
import { rebase } from "./rebase.js";

export class Sketch {
  readonly #initial: Document;
  #shown: Document;
  // What has led from the initial state, with the changes carried over so far, to the thread's.
  #over: readonly Op[] | undefined = undefined;

  constructor(initial: Document) {
    this.#initial = this.#shown = initial;
  }

  /** The initial state with all changes. */
  get shown(): Document {
    return this.#shown;
  }

  /**
   * Changes what is shown. Returns a function that is given what the thread shows, with the changes before this one, and
   * by what states are to be compared, and returns the operations that do the same there; it throws a PatchError where their place is gone. Throws a PatchError
   * where they do not fit.
   */
  add(ops: readonly Op[]): (shown: Document, keys: Keys | undefined) => readonly Op[] {
    const after = (this.#shown = apply(this.#shown, ops));
    return (shown, keys) => this.#carry(ops, after, shown, keys);
  }

  #carry(ops: readonly Op[], after: Document, shown: Document, keys: Keys | undefined): readonly Op[] {
    if (shown === undefined) {
      // The thread has no state: it gets the initial one with the change.
      this.#over = [];
      return after === undefined ? [] : [{ op: "add", path: "", value: after }];
    }
    const moved = rebase(ops, this.#over ?? difference(this.#initial, shown, keys), shown);
    this.#over = moved.over;
    if (moved.isLost) throw new PatchError("what it changes is not in the state of the thread");
    return moved.ops;
  }
}
