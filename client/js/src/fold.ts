/** What a user sees: the server's state with the operations of all pushes carried out that it has not answered. */

import { Keys } from "./elements.js";
import { takingBack } from "./inverse.js";
import { freeze, isEqual, share } from "./json.js";
import type { Insertion, Parts } from "./parts.js";
import { PatchError, apply, diff, tryApply, withoutOwn } from "./patch.js";
import type { Document } from "./json.js";
import type { Pending, ShownChange } from "./pending.js";
import type { Joined, Op, Version } from "./protocol.js";
import { rebase } from "./rebase.js";

/** Where the lists are that have declared keys, and the texts. */
export type Places = { [Name in "list_keys" | "texts"]?: Joined[Name] | undefined };

/** Its members are read by others, and changed only here and where a storage is read. */
export class Fold {
  /** Epoch and version of `confirmed`; undefined before the first join. */
  at: Version | undefined;
  confirmed: Document;
  /** Frozen, as `confirmed` is; keeps its identity, part by part, as long as it is the same. */
  shown: Document;
  /** In the order of their refs. */
  pushes: Pending[] = [];
  /** Whether the thread was joined in this life. */
  hasJoined = false;
  places: Places = {};
  /** The declared members that identify elements when states of the thread are compared, and its texts. */
  keys: Keys;
  // Something of the server's did not fit: what is known is shown on, but not resumed from.
  #isForgotten = false;
  readonly #parts: Parts;
  #insertion: Insertion | undefined;
  readonly #onShown: (change: ShownChange) => void;

  constructor(onShown: (change: ShownChange) => void, parts: Parts = {}) {
    this.#parts = parts;
    this.keys = new Keys({}, [], parts);
    this.#onShown = onShown;
  }

  /** What a join says that the client has. */
  get have(): Version | undefined {
    return this.#isForgotten ? undefined : this.at;
  }

  /** Undefined as long as there is no part for texts. */
  get insertion(): Insertion | undefined {
    return (this.#insertion ??= this.#parts.text?.newInsertion());
  }

  // Pushes

  /** Adds a push of operations on what is shown. Throws a PatchError, and changes nothing, where they do not fit. */
  add(ref: number, ops: readonly Op[]): Pending {
    const after = apply(this.shown, ops);
    const marked = ops.map((op) => this.insertion?.add(op) ?? op);
    const push = { ...newPush(ref, this.at as Version, marked), isShown: true };
    this.pushes.push(push);
    this.#show(after, ops, { push });
    return push;
  }

  /** A push is without effect: what is shown is folded again without it. */
  drop(push: Pending): void {
    this.#take(push);
    if (push.isShown) this.refold([]);
  }

  /** Removes a refused push; the pushes after it, which were made on it, are rebased and shown without it. */
  refuse(push: Pending): void {
    const index = this.pushes.indexOf(push);
    const before = this.#shownWith(this.pushes.slice(0, index));
    this.#take(push);
    // Also where it does not fit, and is not visible: the pushes after it were made as if it did.
    if (!push.lostOn && !push.isSettled) {
      this.refold(takingBack(push.ops, before), { start: index, takesBack: true, refused: push });
    }
  }

  // The server's state

  /** What is known is not to be built on, until the next join. */
  forget(): void {
    this.#isForgotten = true;
  }

  /** Takes in the answer to a join. Throws a PatchError, and changes nothing, where what was missed is missing. */
  join({ epoch, version, state, ops, last_ref: lastRef = 0, list_keys, texts }: Joined): void {
    this.declare({ list_keys, texts });
    const [known, from] = this.have ?? [];
    let [confirmed, over]: [Document, readonly Op[] | undefined] = [state, undefined];
    if (state === undefined) {
      if (known === epoch && (ops || from === version)) {
        over = ops ?? [];
        confirmed = apply(this.confirmed, over);
      } else if (version > 0 || ops) throw new PatchError("changes are missing");
    }
    this.#rejoin([epoch, version], confirmed, over, lastRef);
    this.#isForgotten = false;
    this.hasJoined = true;
  }

  /** Takes in where the lists and texts are. */
  declare(places: Places): void {
    this.places = places;
    this.keys = new Keys(places.list_keys ?? {}, places.texts, this.#parts);
  }

  /** The server has applied the operations of the versions after `from`, up to `to`. Throws as `advance` does. */
  follow(from: number, to: number, ops: readonly Op[]): void {
    const [epoch, version] = this.at as Version;
    if (from !== version || to < from) throw new PatchError("changes are missing");
    this.advance([epoch, to], ops);
  }

  /** The server has applied operations of others. Throws a PatchError, and changes nothing, where they do not fit. */
  advance(at: Version, over: readonly Op[]): void {
    this.confirmed = apply(this.confirmed, over);
    this.refold(over);
    this.at = at;
  }

  /** The server's state is another, whatever was known before. */
  replace(at: Version, confirmed: Document): void {
    const over = this.#difference(this.confirmed, confirmed);
    this.confirmed = freeze(confirmed);
    this.refold(over);
    this.at = at;
  }

  /** The server has answered for all pushes up to `lastRef`. `over` leads to `confirmed`, where that is known. */
  #rejoin(at: Version, confirmed: Document, over: readonly Op[] | undefined, lastRef: number): void {
    const settled = this.pushes.filter((push) => push.sent && push.ref <= lastRef);
    // Later pushes were made on what the settled ones left: only what differs from that is the others' doing.
    const count = this.pushes.findLastIndex((push) => settled.includes(push) && push.isShown) + 1;
    if (over === undefined || count > 0) {
      over = this.#difference(this.#shownWith(this.pushes.slice(0, count)), confirmed);
    }
    for (const push of this.pushes) {
      const isSettled = settled.includes(push);
      // What is not settled any longer was refused: what was accepted is not forgotten.
      if (push.isSettled && !isSettled) Object.assign(push, { lostOn: push.made, isOrphan: true });
      push.isSettled = isSettled;
    }
    this.confirmed = freeze(confirmed);
    // The settled ones may have been refused.
    this.refold(over, { takesBack: count > 0 });
    this.at = at;
  }

  /** The server has carried out `ops` for a push. Throws a PatchError, and changes nothing, where they do not fit. */
  acknowledge(at: Version, push: Pending, ops: readonly Op[]): void {
    const [first, second] = this.pushes.filter(isShown);
    const isFirst = first === push;
    const expected = isFirst ? (second ? apply(this.confirmed, push.ops) : this.shown) : undefined;
    const isExpected = isFirst && isEqual(withoutOwn(ops), withoutOwn(push.ops));
    this.confirmed = isExpected ? expected : apply(this.confirmed, ops);
    const over = isFirst ? this.#difference(expected, this.confirmed) : push.isShown ? [] : ops;
    this.#take(push);
    if (!isExpected) this.refold(over);
    this.at = at;
  }

  /** Returns what others may have done. A string that a push splices is a text, whether declared or not. */
  #difference(before: Document, after: Document): Op[] {
    const { list_keys = {}, texts = [] } = this.places;
    const spliced = this.#parts.text?.textsOf(this.pushes) ?? [];
    return difference(before, after, new Keys(list_keys, [...texts, ...spliced], this.#parts));
  }

  /** Returns the confirmed state with the first pushes. It is not kept with each: long texts would be kept many times. */
  #shownWith(pushes: readonly Pending[]): Document {
    return pushes.filter(isShown).reduce((document, { ops }) => apply(document, ops), this.confirmed);
  }

  #take(push: Pending): void {
    this.pushes = this.pushes.filter((each) => each !== push);
  }

  /**
   * Brings `over`, which led to `confirmed`, before what is shown of the pushes from the index `start` on.
   * With `takesBack`, it may take back what they were made on, as what the `refused` push did.
   */
  refold(
    over: readonly Op[],
    { start = 0, takesBack = false, ...of }: { start?: number; takesBack?: boolean; refused?: Pending } = {},
  ): void {
    let document = this.confirmed;
    for (const [index, push] of this.pushes.entries()) {
      push.isShown = false;
      if (push.lostOn && index >= start) push.isOrphan ||= takesBack;
      if (push.lostOn || push.isSettled) continue;
      const isMoved = index >= start && over.length > 0;
      const moved = rebase(push.ops, isMoved ? over : [], document, this.#parts.text);
      if (moved.isLost) {
        push.lostOn = this.at;
        push.isOrphan = takesBack;
        over = moved.over;
        takesBack = true;
        continue;
      }
      if (isMoved) push.ops = moved.ops;
      const after = tryApply(document, push.ops);
      if (after === undefined) continue;
      push.isShown = true;
      document = after;
      // The next push is rebased over what is left after this one.
      if (isMoved) over = moved.over;
    }
    const shown = freeze(share(this.shown, document));
    this.insertion?.follow(over, this.shown, shown);
    this.#show(shown, over, of);
    if (!this.pushes.some(isShown)) this.confirmed = this.shown;
  }

  #show(after: Document, ops: readonly Op[], of: Pick<ShownChange, "push" | "refused">): void {
    const before = this.shown;
    this.shown = after;
    if (before === after) return;
    // Of an answer that says what was known already, or of a push that no longer fits, there are no operations.
    this.#onShown({ before, after, ops: ops.length > 0 ? ops : this.#difference(before, after), ...of });
  }
}

function isShown(push: Pending): boolean {
  return push.isShown;
}

export function newPush(ref: number, made: Version, ops: readonly Op[]): Pending {
  return { ref, made, ops, sent: undefined, lostOn: undefined, isOrphan: false, isSettled: false, isShown: false };
}

/** Returns what others may have done that made `after` of `before`; no state counts as null. */
export function difference(before: Document, after: Document, keys: Keys | undefined): Op[] {
  return diff(before ?? null, after ?? null, keys, { byLetters: true });
}
