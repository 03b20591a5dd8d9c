/** Undo and redo of this client's own changes: which changes can be undone, and which are undone together. */

import type { Pending, ShownChange } from "./pending.js";
import { invert } from "./inverse.js";
import { pathOf, regionsOf } from "./over.js";
import type { History, Parts, UndoPart } from "./parts.js";
import { PatchError, parse, splices } from "./patch.js";
import type { Document } from "./json.js";
import type { Op } from "./protocol.js";
import { compose } from "./text.js";
import { Chain } from "./undo-chain.js";
import type { Entry } from "./undo-chain.js";

/** Changes of one place that are no further apart, in milliseconds, are undone together. */
const PAUSE = 1_000;
/** A longer insertion at once was pasted, and is undone by itself. */
const LONG = 20;

/** Undo and redo of this client's own changes, as an option of a client. */
export const undo: UndoPart = {
  newHistory: (now, parts) => new UndoHistory(now, parts),
  newMethods(edits, history) {
    const run = (what: "undo" | "redo", pointer: string) => {
      if (edits.isEarly) return undefined;
      return history.run(what, parse(pointer), edits.shown, (ops) => edits.make(() => ops));
    };
    const can = (what: "undo" | "redo", pointer: string) => {
      return !edits.isEarly && history.can(what, parse(pointer), edits.shown);
    };
    return {
      undo: (pointer = "") => run("undo", pointer),
      redo: (pointer = "") => run("redo", pointer),
      canUndo: (pointer = "") => can("undo", pointer),
      canRedo: (pointer = "") => can("redo", pointer),
    };
  },
};

/** The changes of this client that can be undone, and those that were undone. */
export class UndoHistory implements History {
  readonly #now: () => number;
  readonly #parts: Parts | undefined;
  readonly #done: Chain;
  readonly #undone: Chain;
  readonly #unanswered = new Map<Pending, { readonly entry: Entry; readonly isInsertion: boolean }>();
  // The action under way.
  #doing: "undo" | "redo" | undefined;
  #pauses = 0;
  // The entry of the changes since the pause began.
  #paused: Entry | undefined;

  /** The clock counts milliseconds. */
  constructor(now: () => number, parts?: Parts) {
    this.#now = now;
    this.#parts = parts;
    this.#done = new Chain(parts);
    this.#undone = new Chain(parts);
  }

  handle(change: ShownChange): void {
    const { before, ops, push, refused } = change;
    if (!push) {
      const entry = refused && this.#unanswered.get(refused)?.entry;
      for (const chain of [this.#done, this.#undone]) {
        if (!entry) chain.pass(ops);
        else if (attempt(chain, () => chain.refuse(entry, change))) this.#unanswered.delete(refused);
      }
      return;
    }
    const back = invert(before, ops);
    let entry: Entry | undefined;
    if (this.#doing) entry = this.#chain(this.#doing === "undo" ? "redo" : "undo").add(back, this.#now(), false);
    else {
      this.#undone.clear();
      entry = this.#extend(before, ops, back) ?? this.#add(ops, back);
      if (this.#pauses > 0) {
        this.#paused = entry;
        entry.isOpen = isTyping(ops);
      }
    }
    this.#unanswered.set(push, { entry, isInsertion: ops.every(isInsertion) });
  }

  settle(push: Pending, isRefused: boolean): void {
    const found = this.#unanswered.get(push);
    // Inserted characters that are gone again need not be taken back, and the rest of the entry still can be; this is
    // also so after a push that came to do nothing.
    if (found && isRefused && !found.isInsertion && push.ops.length > 0) found.entry.isRefused = true;
    this.#unanswered.delete(push);
  }

  pause(): void {
    this.#pauses++;
  }

  resume(): void {
    this.#pauses = Math.max(0, this.#pauses - 1);
    if (this.#pauses === 0) this.#paused = undefined;
  }

  can(what: "undo" | "redo", place: readonly string[], document: Document): boolean {
    return attempt(this.#chain(what), (chain) => chain.has(place, document)) ?? false;
  }

  run<Answer>(
    what: "undo" | "redo",
    place: readonly string[],
    document: Document,
    push: (ops: readonly Op[]) => Answer,
  ): Answer | undefined {
    // Without the state, the push is refused.
    const hasState = this.#parts?.state !== false;
    const ops = hasState ? attempt(this.#chain(what), (chain) => chain.take(place, document)) : [];
    if (!ops) return undefined;
    this.#doing = what;
    try {
      return push(ops);
    } finally {
      this.#doing = undefined;
    }
  }

  #chain(what: "undo" | "redo"): Chain {
    return what === "undo" ? this.#done : this.#undone;
  }

  #add(ops: readonly Op[], back: readonly Op[]): Entry {
    return this.#done.add(back, this.#now(), insertedBy(ops).length <= LONG);
  }

  /** Adds a change to the last entry, if they are of one burst. */
  #extend(before: Document, ops: readonly Op[], back: readonly Op[]): Entry | undefined {
    const top = attempt(this.#done, (chain) => chain.top(before));
    const now = this.#now();
    const isHeld = top !== undefined && top === this.#paused;
    const begins = this.#pauses > 0 && !isTyping(ops);
    if (!isHeld && (begins || !top?.isOpen || now - top.at > PAUSE)) return undefined;
    const joined = isTyping(ops) ? typedTogether(top.ops, back) : setTogether(top.ops, back);
    const both = joined ?? (isHeld ? [...back, ...top.ops] : undefined);
    if (!both) return undefined;
    Object.assign(top, { ops: both, at: now });
    return top;
  }
}

/** Does something with a chain; a chain that does not fit the shown state is given up. */
function attempt<Result>(chain: Chain, act: (chain: Chain) => Result): Result | undefined {
  try {
    return act(chain);
  } catch (error) {
    if (!(error instanceof PatchError)) throw error;
    chain.clear();
    return undefined;
  }
}

// Bursts

/** Tells whether a change continues a burst of typing: no new line, nothing pasted, no more than a letter deleted. */
function isTyping(ops: readonly Op[]): boolean {
  const inserted = insertedBy(ops);
  const removed = ops.reduce((sum, op) => sum + (op.op === "splice" ? (op.remove ?? 0) : 0), 0);
  return (
    ops.every(({ op }) => op === "splice") &&
    !inserted.includes("\n") &&
    inserted.length <= LONG &&
    (inserted !== "" || removed <= 1)
  );
}

function isInsertion(op: Op): boolean {
  return op.op === "splice" && !op.remove;
}

function insertedBy(ops: readonly Op[]): string {
  return ops.map((op) => (op.op === "splice" ? (op.insert ?? "") : "")).join("");
}

/** Returns the operations that take back two changes of one text that touch each other. */
function typedTogether(first: readonly Op[], second: readonly Op[]): Op[] | undefined {
  const [path, before] = [pathOf(first), regionsOf(first)];
  if (path === undefined || path !== pathOf(second) || !before) return undefined;
  const both = compose(regionsOf(second) ?? [], before);
  return both.length <= before.length ? splices(path, both) : undefined;
}

/**
 * Returns the operations that take back two changes that set the same places, one after the other, as a slider does.
 */
function setTogether(first: readonly Op[], second: readonly Op[]): readonly Op[] | undefined {
  const isSame = (op: Op, index: number) => op.op === "replace" && op.path === second[index]?.path;
  const isSetting = second.every(({ op }) => op === "replace");
  return isSetting && first.length === second.length && first.every(isSame) ? first : undefined;
}
