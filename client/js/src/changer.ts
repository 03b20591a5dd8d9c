/** Changes the state through a session, and gives each who does a promise of the version that has it. */

import type { Keys } from "./align.js";
import type { Answers } from "./answers.js";
import { Deferred } from "./deferred.js";
import type { Early } from "./early.js";
import { PlaitError } from "./errors.js";
import { plain } from "./json.js";
import type { Json } from "./json.js";
import type { Link } from "./link.js";
import { PatchError, diff, find, parse } from "./patch.js";
import type { Document } from "./patch.js";
import type { Op } from "./protocol.js";
import { rebase } from "./rebase.js";
import type { Session } from "./session.js";
import { Sketch } from "./sketch.js";
import type { Subscribers } from "./subscribers.js";

export class Changer {
  readonly #link: Link;
  readonly #early: Early;
  readonly #answers: Answers;
  readonly #subscribers: Subscribers;
  readonly #initial: Document;
  // Without an initial state there is nothing to change before the thread has told its own.
  readonly #sketch: Sketch | undefined;
  // How many changes of the sketch wait for the thread's state.
  #sketched = 0;

  constructor(link: Link, early: Early, answers: Answers, subscribers: Subscribers, initial: Document) {
    this.#link = link;
    this.#early = early;
    this.#answers = answers;
    this.#subscribers = subscribers;
    this.#initial = initial;
    this.#sketch = initial === undefined ? undefined : new Sketch(initial);
  }

  /** What the user sees: the initial state until the thread has told its own, with the changes that were made on it. */
  get shown(): Document {
    if (this.#sketch && this.#sketched > 0) return this.#sketch.shown;
    return this.#session.at === undefined ? this.#initial : this.#session.shown;
  }

  /** Sets the state to what `make` makes of it, which may make changes of its own meanwhile. */
  set(make: (state: Document) => unknown): Promise<number> {
    return this.#change(() => {
      const before = this.shown;
      return leadingTo(plain(make(before), before), before, this.shown, this.#session.keys);
    });
  }

  /** Sets one place of the state. */
  update(pointer: string, value: unknown): Promise<number> {
    return this.#change(() => {
      const isThere = find(this.shown, parse(pointer)) !== undefined;
      return [{ op: isThere ? "replace" : "add", path: pointer, value: plain(value) }];
    });
  }

  get #session(): Session {
    return this.#link.session;
  }

  #change(make: () => readonly Op[]): Promise<number> {
    const answer = new Deferred<number>();
    // What is made while others are carried over stands behind them, and on what is shown with them.
    const isEarly = this.#sketched > 0 || (this.#early.isWaiting && this.#session.at === undefined);
    if (this.#sketch && isEarly) this.#changeEarly(this.#sketch, make, answer);
    else this.#early.inTurn(() => this.#push(make, answer), { isChange: true });
    this.#link.pump();
    return answer.promise;
  }

  /** Makes a change of the initial state, which is pushed when the thread has told its own. */
  #changeEarly(sketch: Sketch, make: () => readonly Op[], answer: Deferred<number>): void {
    this.#attempt(make, answer, (ops) => {
      const carry = sketch.add(ops);
      this.#sketched++;
      const push = () => {
        this.#sketched--;
        this.#push(() => carry(this.#session.shown, this.#session.keys), answer);
      };
      this.#early.inTurn(push, { isChange: true });
    });
  }

  #push(make: () => readonly Op[], answer: Deferred<number>): void {
    const { session, status, closedError } = this.#link;
    if (status === "closed") return this.#refuse(answer, closedError);
    this.#attempt(make, answer, (ops) => {
      const push = session.push(ops);
      if (push) this.#answers.addPush(push, answer);
      else answer.resolve(session.at?.[1] as number);
    });
    this.#link.pump();
  }

  /** Makes operations and carries them out; whatever is wrong with them is the answer. */
  #attempt(make: () => readonly Op[], answer: Deferred<number>, carryOut: (ops: readonly Op[]) => void): void {
    let ops: readonly Op[] = [];
    try {
      ops = make();
      carryOut(ops);
    } catch (error) {
      if (error instanceof PatchError) this.#refuse(answer, new PlaitError("bad_state", error.message), ops);
      // Nobody else would hear of it.
      else answer.raise(error);
    }
  }

  /** Refuses a change that is none of the session's. */
  #refuse(answer: Deferred<number>, error: PlaitError, ops: readonly Op[] = []): void {
    answer.reject(error);
    this.#subscribers.refuse({ error, ops }, answer);
  }
}

/**
 * Returns what makes `next`, which was made of `before`, of what is shown. Throws a PatchError where what was pushed in
 * between has taken away what it leads into.
 */
function leadingTo(next: Json, before: Document, shown: Document, keys: Keys | undefined): Op[] {
  const between = before === undefined ? [] : diff(before, shown as Json, keys);
  const { ops, isLost } = rebase(diff(before, next, keys), between, shown);
  if (isLost) throw new PatchError("what it changes was taken away by a change that was made within it");
  return ops;
}
