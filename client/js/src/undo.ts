/** Undo and redo: what takes back this client's own changes, brought past all that others do. */

import type { Pending, ShownChange } from "./fold.js";
import { invert } from "./inverse.js";
import { PatchError, apply, parse, regionOf, splices } from "./patch.js";
import type { Document } from "./patch.js";
import type { Op } from "./protocol.js";
import { rebase } from "./rebase.js";
import { isWithin, makeOp, pointer } from "./step.js";
import { compose } from "./text.js";
import type { Region } from "./text.js";

/** So many changes can be undone. */
const MOST = 500;
/** When others have done so much since a change, it cannot be undone any more. */
const MOST_OVER = 5_000;
/** Changes that are no further apart, in milliseconds, are undone together, if they are of one place. */
const PAUSE = 1_000;
/** What is inserted at once and is longer was pasted, and is undone by itself. */
const LONG = 20;

interface Entry {
  /** What takes the change back, after all later entries are taken back. */
  ops: readonly Op[];
  /** What others have done after the change, and before the next entry's. */
  over: Over;
  at: number;
  /** Whether further typing is undone with it. */
  isOpen: boolean;
  /** Whether something was refused that the entry does not fit any more. */
  isRefused: boolean;
}

/** The own changes that are shown, or that were undone; each is taken back from what the later ones leave. */
class Chain {
  readonly #entries: Entry[] = [];

  /** Adds what takes back the last change. */
  add(ops: readonly Op[], at: number, isOpen: boolean): Entry {
    const entry = { ops, over: NOTHING, at, isOpen, isRefused: false };
    this.#entries.push(entry);
    if (this.#entries.length > MOST) this.#entries.shift();
    return entry;
  }

  clear(): void {
    this.#entries.length = 0;
  }

  /** Others have carried out operations. */
  pass(ops: readonly Op[]): void {
    const last = this.#entries.at(-1);
    if (!last) return;
    last.over = joined(last.over, ops);
    if (countOf(last.over) > MOST_OVER) this.clear();
  }

  /** Returns the last entry, brought up to what is shown. */
  top(document: Document): Entry | undefined {
    while (this.#entries.length > 0) {
      const index = this.#entries.length - 1;
      if (this.#bringUp(index, document)) return this.#entries[index];
    }
    return undefined;
  }

  removeTop(): void {
    this.#entries.pop();
  }

  /** Tells whether there is an entry of a place that can be taken back. */
  has(place: readonly string[], document: Document): boolean {
    return this.#find(place, document) !== undefined;
  }

  /** Removes the last entry of a place; returns what takes it back from what is shown, undefined where none can be. */
  take(place: readonly string[], document: Document): readonly Op[] | undefined {
    const found = this.#find(place, document);
    if (!found) return undefined;
    const { index, ops, moved } = found;
    this.#entries.splice(index, 1);
    moved.forEach((each, offset) => ((this.#entries[index + offset] as Entry).ops = each));
    return ops;
  }

  /** Returns what takes an entry back before those above it, and what then takes those back. */
  #raise(index: number, above: readonly Above[], before: Document): Raised | undefined {
    let { ops } = this.#entries[index] as Entry;
    const moved: (readonly Op[])[] = [];
    // Each entry above it is to be taken back after it, in place of before.
    for (const { entry, document: there } of above) {
      const raised = rebase(ops, invert(there, entry.ops), there);
      if (raised.isLost || raised.conflicts.length > 0) return undefined;
      const left = apply(before, ops);
      moved.push(invert(left, raised.over));
      ops = raised.ops;
      before = there;
    }
    return { index, ops, moved };
  }

  /**
   * Finds the last entry of a place, and what takes it back from what is shown; undefined where there is none, or it
   * cannot be taken back before those above it.
   */
  #find(place: readonly string[], document: Document): Raised | undefined {
    const above: Above[] = [];
    for (let index = this.#entries.length - 1; index >= 0; index--) {
      if (!this.#bringUp(index, document)) continue;
      const entry = this.#entries[index] as Entry;
      if (entry.ops.every(({ path }) => isWithin(parse(path), place))) return this.#raise(index, above, document);
      const after = apply(document, entry.ops);
      above.unshift({ entry, document, after });
      const next = placeAfter(place, entry.ops, after);
      if (!next) return undefined;
      [place, document] = [next, after];
    }
    return undefined;
  }

  /**
   * Brings an entry past what others have done since, which then comes after the entry below it. Returns whether it can
   * still be taken back: not where others have changed its place.
   */
  #bringUp(index: number, document: Document): boolean {
    const entry = this.#entries[index] as Entry;
    if (countOf(entry.over) === 0 && !entry.isRefused) return true;
    const { ops, conflicts, isLost, over } = rebase(entry.ops, opsOf(entry.over), document);
    const stays = !isLost && !entry.isRefused && conflicts.length === 0 && ops.length > 0;
    const below = this.#entries[index - 1];
    // For the entries below, a change that stays as it is was made by others.
    if (below) below.over = joined(below.over, stays || isLost ? over : [...over, ...invert(document, ops)]);
    if (stays) Object.assign(entry, { ops, over: NOTHING });
    else this.#entries.splice(index, 1);
    return stays;
  }
}

/** An entry with the document that it is taken back from, and what it leaves. */
interface Above {
  readonly entry: Entry;
  readonly document: Document;
  readonly after: Document;
}

/** What takes the entry at an index back from what is shown, and what then takes back those above it, in order. */
interface Raised {
  readonly index: number;
  readonly ops: readonly Op[];
  readonly moved: readonly (readonly Op[])[];
}

/** Returns where a place comes to be by operations that lead to a document; undefined where they remove it. */
function placeAfter(place: readonly string[], ops: readonly Op[], document: Document): string[] | undefined {
  const [moved] = rebase([makeOp("replace", pointer(place), { value: null })], ops, document).ops;
  return moved && parse(moved.path);
}

/** The changes of this client that can be undone, and those that were. */
export class UndoHistory {
  readonly #now: () => number;
  readonly #done = new Chain();
  readonly #undone = new Chain();
  readonly #unanswered = new Map<Pending, { readonly entry: Entry; readonly isInsertion: boolean }>();
  // What is under way.
  #doing: "undo" | "redo" | undefined = undefined;

  /** The clock counts milliseconds. */
  constructor(now: () => number) {
    this.#now = now;
  }

  /** What is shown has changed. */
  handle({ before, ops, push }: ShownChange): void {
    if (!push) {
      this.#done.pass(ops);
      this.#undone.pass(ops);
      return;
    }
    const back = invert(before, ops);
    let entry: Entry | undefined;
    if (this.#doing === "undo") entry = this.#undone.add(back, this.#now(), false);
    else if (this.#doing === "redo") entry = this.#done.add(back, this.#now(), false);
    else {
      this.#undone.clear();
      entry = this.#extend(before, ops, back) ?? this.#add(ops, back);
    }
    this.#unanswered.set(push, { entry, isInsertion: ops.every(isInsertion) });
  }

  /** The server has answered a push. */
  settle(push: Pending, isRefused: boolean): void {
    const found = this.#unanswered.get(push);
    // Inserted characters that are gone again need not be taken back, and all others of the entry still can be.
    if (found && isRefused && !found.isInsertion) found.entry.isRefused = true;
    this.#unanswered.delete(push);
  }

  /** Tells whether there is something to undo or redo at a place or in it. */
  can(what: "undo" | "redo", place: readonly string[], document: Document): boolean {
    return attempt(this.#chain(what), (chain) => chain.has(place, document)) ?? false;
  }

  /**
   * Undoes or redoes the last of the changes at a place or in it, on what is shown; `push` must push the operations at
   * once. Returns what it returns; undefined where there is nothing to do.
   */
  run<Answer>(
    what: "undo" | "redo",
    place: readonly string[],
    document: Document,
    push: (ops: readonly Op[]) => Answer,
  ): Answer | undefined {
    const ops = attempt(this.#chain(what), (chain) => chain.take(place, document));
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
    if (!top?.isOpen || now - top.at > PAUSE) return undefined;
    const both = isTyping(ops) ? typedTogether(top.ops, back) : setTogether(top.ops, back);
    if (!both) return undefined;
    Object.assign(top, { ops: both, at: now });
    if (both.length === 0) this.#done.removeTop();
    return top;
  }
}

/** Does something with a chain; one that does not fit what is shown is given up. */
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

/** Tells whether a change goes on with a burst of typing: no new line, nothing pasted, no more than a letter deleted. */
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

/** Returns what takes back two changes of one text that touch each other. */
function typedTogether(first: readonly Op[], second: readonly Op[]): Op[] | undefined {
  const [path, before] = [pathOf(first), regionsOf(first)];
  if (path === undefined || path !== pathOf(second) || !before) return undefined;
  const both = compose(regionsOf(second) ?? [], before);
  return both.length <= before.length ? splices(path, both) : undefined;
}

/** Returns what takes back two changes that set the same places, one after the other, as a slider does. */
function setTogether(first: readonly Op[], second: readonly Op[]): readonly Op[] | undefined {
  const isSame = (op: Op, index: number) => op.op === "replace" && op.path === second[index]?.path;
  const isSetting = second.every(({ op }) => op === "replace");
  return isSetting && first.length === second.length && first.every(isSame) ? first : undefined;
}

// What others have done

/** What was done one after the other; of one text alone, the one change that it makes. */
type Over = readonly Op[] | { readonly path: string; readonly regions: readonly Region[] };

const NOTHING: Over = [];

/** Returns what others have done as operations. */
function opsOf(over: Over): readonly Op[] {
  return "path" in over ? splices(over.path, over.regions) : over;
}

function countOf(over: Over): number {
  return "path" in over ? over.regions.length : over.length;
}

function joined(first: Over, second: readonly Op[]): Over {
  if (second.length === 0) return first;
  const path = pathOf(second);
  const after = path === undefined ? undefined : regionsOf(second);
  if (path !== undefined && after) {
    if (countOf(first) === 0) return { path, regions: after };
    if ("path" in first && first.path === path) return { path, regions: compose(first.regions, after) };
  }
  return [...opsOf(first), ...second];
}

/** Returns the text that all operations change; undefined where they change anything else, or several. */
function pathOf(ops: readonly Op[]): string | undefined {
  const path = ops[0]?.path;
  return ops.every((op) => op.op === "splice" && op.path === path) ? path : undefined;
}

/** Returns the one change that splices of one text make of it. */
export function regionsOf(ops: readonly Op[]): readonly Region[] | undefined {
  const [op] = ops;
  if (!op) return [];
  if (ops.length === 1) return op.op === "splice" ? compose([], [regionOf(op)]) : undefined;
  // Composed in halves, as each composition goes through all regions.
  const middle = ops.length >> 1;
  const [first, second] = [regionsOf(ops.slice(0, middle)), regionsOf(ops.slice(middle))];
  return first && second && compose(first, second);
}
