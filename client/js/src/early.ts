/** Before the thread has sent its state: requests wait in order, and edits of the initial state are shown. */

import type { Keys } from "./elements.js";
import { raise } from "./errors.js";
import { difference } from "./fold.js";
import { PatchError, apply, replace } from "./patch.js";
import type { Document, Json } from "./json.js";
import type { Op } from "./protocol.js";
import { rebase } from "./rebase.js";

interface Waiting {
  act: () => void;
  edits: number;
}

/** Actions that wait, in order, until there is a state. */
export class EarlyQueue {
  readonly #isOver: () => boolean;
  readonly #waiting: Waiting[] = [];
  /** How many edits wait. */
  edits = 0;

  /** `isOver` tells whether there is a state, or the client is closed; `run` must be called when that has changed. */
  constructor(isOver: () => boolean) {
    this.#isOver = isOver;
  }

  /** Whether an action would have to wait. */
  get isWaiting(): boolean {
    return this.#waiting.length > 0 || !this.#isOver();
  }

  /**
   * Acts after all waiting actions; at once if there is a state and nothing waits. `edits` is the number of edits in
   * the action.
   */
  inTurn(act: () => void, edits = 0): void {
    if (!this.isWaiting) return act();
    this.#waiting.push({ act, edits });
    this.edits += edits;
  }

  /** Runs all waiting actions, and those that they add. */
  run(): void {
    for (let next = this.#waiting.shift(); next; next = this.#waiting.shift()) {
      this.edits -= next.edits;
      try {
        next.act();
      } catch (error) {
        raise(error);
      }
    }
  }
}

/** Returns the operations of an edit on the shown state; throws a PatchError if its place is missing. */
export type Rebase = (shown: Document, keys: Keys) => readonly Op[];

/** The initial state with the edits made on it, which are rebased onto the thread's state when that comes. */
export class InitialState {
  /** The initial state itself. */
  readonly document: Document;
  /** The initial state with all edits. */
  shown: Document;
  // The operations that lead from the initial state, with the edits rebased so far, to the thread's state.
  #over: readonly Op[] | undefined;

  constructor(document: Document) {
    this.document = this.shown = document;
  }

  /** Applies an edit; throws a PatchError if it does not fit. Edits must be rebased in the order of these calls. */
  edit(ops: readonly Op[]): Rebase {
    const before = this.shown;
    const after = (this.shown = apply(before, ops));
    // The thread's state tells which strings are texts; before it, this is not known.
    return (shown, keys) => {
      const change = (old: Document, next: Json, path: string) => replace(old, next, path, keys);
      return this.#rebase(keys.parts.text?.inTexts(ops, before, change) ?? ops, after, shown, keys);
    };
  }

  #rebase(ops: readonly Op[], after: Document, shown: Document, keys: Keys): readonly Op[] {
    if (shown === undefined) {
      // The thread has no state: it gets the initial one with the edit.
      this.#over = [];
      return after === undefined ? [] : [{ op: "add", path: "", value: after }];
    }
    const moved = rebase(ops, this.#over ?? difference(this.document, shown, keys), shown, keys.parts.text);
    this.#over = moved.over;
    if (moved.isLost) throw new PatchError("what this edit changes is gone");
    return moved.ops;
  }
}
