/** The state that a user sees: the server's state with the operations of all pushes that it has not answered. */

import { Keys } from "./elements.js";
import { takingBack } from "./inverse.js";
import { freeze, isEqual, share } from "./json.js";
import type { Insertion, Parts } from "./parts.js";
import { PatchError, apply, diff, tryApply, withoutOwn } from "./patch.js";
import type { Document } from "./json.js";
import type { Pending, ShownChange } from "./pending.js";
import type { Joined, Op, Version } from "./protocol.js";
import { rebase } from "./rebase.js";

/** The places of the lists with declared keys, and of the texts. */
export type Places = { [Name in "list_keys" | "texts"]?: Joined[Name] | undefined };

/** The members are read by others, but changed only here and when a storage is read. */
export class Fold {
  /** Epoch and version of `confirmed`; undefined before the first join. */
  at: Version | undefined;
  confirmed: Document;
  /** Frozen, like `confirmed`; keeps its identity, part by part, while it is the same. */
  shown: Document;
  /** In the order of their refs. */
  pushes: Pending[] = [];
  /** Whether the thread was joined in this life. */
  hasJoined = false;
  places: Places = {};
  /** The declared members that identify elements when states of the thread are compared, and its texts. */
  keys: Keys;
  // Whether a change from the server did not fit: the known state is still shown, but a join does not resume from it.
  // A client without the state has none to resume from.
  #isForgotten = false;
  readonly #parts: Parts;
  #insertion: Insertion | undefined;
  readonly #onShown: ((change: ShownChange) => void) | undefined;

  constructor(onShown: ((change: ShownChange) => void) | undefined, parts: Parts = {}) {
    this.#parts = parts;
    this.keys = new Keys({}, [], parts);
    this.#onShown = onShown;
  }

  /** The version of the state that the client has, for a join. */
  get have(): Version | undefined {
    return this.#isForgotten ? undefined : this.at;
  }

  /** Undefined while there is no part for texts. */
  get insertion(): Insertion | undefined {
    return (this.#insertion ??= this.#parts.text?.newInsertion());
  }

  // Pushes

  /** Adds a push of operations on the shown state. Throws a PatchError, and changes nothing, if they do not fit. */
  add(ref: number, ops: readonly Op[]): Pending {
    const after = apply(this.shown, ops);
    const marked = ops.map((op) => this.insertion?.add(op) ?? op);
    const push = { ...newPush(ref, this.at as Version, marked), isShown: true };
    this.pushes.push(push);
    this.#show(after, ops, { push });
    return push;
  }

  /** Drops a push that has no effect: the shown state is folded again without it. */
  drop(push: Pending): void {
    this.#take(push);
    if (push.isShown) this.refold([]);
  }

  /** Removes a refused push; the pushes after it, which were made on it, are rebased and shown without it. */
  refuse(push: Pending): void {
    const index = this.pushes.indexOf(push);
    const before = this.#shownWith(this.pushes.slice(0, index));
    this.#take(push);
    // This includes a push that does not fit and is not visible: the pushes after it were made as if it fitted.
    if (!push.lostOn && !push.isSettled) {
      this.refold(takingBack(push.ops, before), { start: index, takesBack: true, refused: push });
    }
  }

  // The server's state

  /** Stops building on the known state until the next join. */
  forget(): void {
    this.#isForgotten = true;
  }

  /** Takes in the answer to a join. Throws a PatchError, and changes nothing, if missed changes are missing. */
  join({ epoch, version, state, ops, last_ref: lastRef = 0, list_keys, texts }: Joined): void {
    this.declare({ list_keys, texts });
    const [known, from] = this.have ?? [];
    let [confirmed, over]: [Document, readonly Op[] | undefined] = [state, undefined];
    if (state === undefined) {
      if (known === epoch && (ops || from === version)) {
        over = ops ?? [];
        confirmed = apply(this.confirmed, over);
      } else if ((version > 0 && this.#parts.state !== false) || ops) throw new PatchError("changes are missing");
    }
    this.#rejoin([epoch, version], confirmed, over, lastRef);
    this.#isForgotten = this.#parts.state === false;
    this.hasJoined = true;
  }

  /** Takes in the places of the lists and texts. */
  declare(places: Places): void {
    this.places = places;
    this.keys = new Keys(places.list_keys ?? {}, places.texts, this.#parts);
  }

  /**
   * Applies the operations of the versions after `from`, up to `to`, which the server has applied. Throws as `advance`
   * does.
   */
  follow(from: number, to: number, ops: readonly Op[]): void {
    const [epoch, version] = this.at as Version;
    if (from !== version || to < from) throw new PatchError("changes are missing");
    this.advance([epoch, to], ops);
  }

  /**
   * Applies operations of others that the server has applied. Throws a PatchError, and changes nothing, if they do not
   * fit.
   */
  advance(at: Version, over: readonly Op[]): void {
    this.confirmed = apply(this.confirmed, over);
    this.refold(over);
    this.at = at;
  }

  /** Replaces the server's state, whatever was known before. */
  replace(at: Version, confirmed: Document): void {
    const over = this.#difference(this.confirmed, confirmed);
    this.confirmed = freeze(confirmed);
    this.refold(over);
    this.at = at;
  }

  /** Settles all pushes up to `lastRef`, which the server has answered. `over` leads to `confirmed`, if it is known. */
  #rejoin(at: Version, confirmed: Document, over: readonly Op[] | undefined, lastRef: number): void {
    const settled = this.pushes.filter((push) => push.sent && push.ref <= lastRef);
    // Later pushes were made on the result of the settled ones: only the differences from that result are changes of
    // others.
    const count = this.pushes.findLastIndex((push) => settled.includes(push) && push.isShown) + 1;
    if (over === undefined || count > 0) {
      over = this.#difference(this.#shownWith(this.pushes.slice(0, count)), confirmed);
    }
    for (const push of this.pushes) {
      const isSettled = settled.includes(push);
      // A push that is not settled any longer was refused: the server does not forget what it has accepted.
      if (push.isSettled && !isSettled) Object.assign(push, { lostOn: push.made, isOrphan: true });
      push.isSettled = isSettled;
    }
    this.confirmed = freeze(confirmed);
    // The settled pushes may have been refused.
    this.refold(over, { takesBack: count > 0 });
    this.at = at;
  }

  /**
   * Applies `ops`, with which the server has carried out a push. Throws a PatchError, and changes nothing, if they do
   * not fit.
   */
  answered(at: Version, push: Pending, ops: readonly Op[]): void {
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

  /**
   * Returns changes of others that may lead from one state to the other. A string that a push splices is a text,
   * whether declared or not.
   */
  #difference(before: Document, after: Document): Op[] {
    const { list_keys = {}, texts = [] } = this.places;
    const spliced = this.#parts.text?.textsOf(this.pushes) ?? [];
    return difference(before, after, new Keys(list_keys, [...texts, ...spliced], this.#parts));
  }

  /**
   * Returns the confirmed state with the first pushes. This state is not kept with each push: long texts would be kept
   * many times.
   */
  #shownWith(pushes: readonly Pending[]): Document {
    return pushes.filter(isShown).reduce((document, { ops }) => apply(document, ops), this.confirmed);
  }

  #take(push: Pending): void {
    this.pushes = this.pushes.filter((each) => each !== push);
  }

  /**
   * Moves `over`, which led to `confirmed`, before the shown effect of the pushes from the index `start` on. With
   * `takesBack`, `over` may take back the base of these pushes, such as the effect of the `refused` push.
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
      // The next push is rebased over the operations that are left after this one.
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
    // An answer that tells nothing new, or to a push that no longer fits, has no operations.
    this.#onShown?.({ before, after, ops: ops.length > 0 ? ops : this.#difference(before, after), ...of });
  }
}

function isShown(push: Pending): boolean {
  return push.isShown;
}

export function newPush(ref: number, made: Version, ops: readonly Op[]): Pending {
  return { ref, made, ops, sent: undefined, lostOn: undefined, isOrphan: false, isSettled: false, isShown: false };
}

/** Returns changes of others that may lead from `before` to `after`; no state counts as null. */
export function difference(before: Document, after: Document, keys: Keys | undefined): Op[] {
  return diff(before ?? null, after ?? null, keys, { byLetters: true });
}
