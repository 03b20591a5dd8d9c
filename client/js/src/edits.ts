/** Edits of the state: each is pushed, and answered with a promise of its version. */

import type { Keys } from "./elements.js";
import { Deferred } from "./deferred.js";
import { InitialState } from "./early.js";
import type { EarlyQueue } from "./early.js";
import { PlaitError } from "./errors.js";
import type { SessionEvent } from "./events.js";
import { difference } from "./fold.js";
import type { Pending } from "./pending.js";
import { plain } from "./json.js";
import type { Document, Json } from "./json.js";
import type { Link } from "./link.js";
import type { ThreadListeners } from "./listeners.js";
import type { Editing, Insertion } from "./parts.js";
import { missing } from "./options.js";
import { PatchError, apply, diff, find, parse, replace } from "./patch.js";
import type { Op } from "./protocol.js";
import { rebase } from "./rebase.js";
import type { Session } from "./session.js";

export class Edits implements Editing {
  readonly #link: Link;
  readonly #early: EarlyQueue;
  readonly #listeners: ThreadListeners;
  // Undefined if edits wait for the thread's state, because there is no initial one.
  readonly #initial: InitialState | undefined;
  // The number of edits of the initial state that wait for the thread's.
  #waiting = 0;
  readonly #answers = new Map<Pending, Deferred<number>>();

  constructor(link: Link, early: EarlyQueue, listeners: ThreadListeners, initial: Document) {
    this.#link = link;
    this.#early = early;
    this.#listeners = listeners;
    this.#initial = initial === undefined ? undefined : new InitialState(initial);
  }

  /** The state that the user sees; until the thread has sent its state, the initial one with its edits. */
  get shown(): Document {
    if (this.#waiting) return this.#initial?.shown;
    return this.#session.epoch === undefined ? this.#initial?.document : this.#session.shown;
  }

  /** Sets the state to the result of `make` for the shown one; `make` may make edits of its own. */
  set(make: (state: Document) => unknown): Promise<number> {
    return this.#edit(() => {
      const before = this.shown;
      return opsTo(plain(make(before), before), before, this.shown, this.#session.keys);
    });
  }

  /** Sets the value at a JSON pointer; in a text, only the differences. */
  update(pointer: string, value: unknown): Promise<number> {
    return this.#edit(() => {
      const [old, next] = [find(this.shown, parse(pointer)), plain(value)];
      return old === undefined
        ? [{ op: "add", path: pointer, value: next }]
        : replace(old, next, pointer, this.#session.keys);
    });
  }

  /** Pushes the operations that `make` returns for the shown state. */
  make(make: (shown: Document) => readonly Op[]): Promise<number> {
    return this.#edit(() => make(this.shown));
  }

  /** Whether the shown state is not the session's, because edits of the initial state wait for the thread's. */
  get isEarly(): boolean {
    return this.#waiting > 0 || this.#session.epoch === undefined;
  }

  get insertion(): Insertion | undefined {
    return this.#session.queue.fold.insertion;
  }

  get #session(): Session {
    return this.#link.session;
  }

  #edit(make: () => readonly Op[]): Promise<number> {
    const answer = new Deferred<number>();
    // An edit that is made while others are rebased onto the thread's state is rebased after them.
    const isEarly = this.#waiting || (this.#early.isWaiting && this.#session.epoch === undefined);
    if (this.#initial && isEarly) this.#editInitial(this.#initial, make, answer);
    else this.#early.inTurn(() => this.#push(make, answer), 1);
    this.#link.pump();
    return answer.promise;
  }

  /** Edits the initial state; the edit is pushed when the thread has sent its own. */
  #editInitial(initial: InitialState, make: () => readonly Op[], answer: Deferred<number>): void {
    this.#attempt(make, answer, (ops) => {
      const rebaseEdit = initial.edit(ops);
      this.#waiting++;
      this.#early.inTurn(() => {
        this.#waiting--;
        this.#push(() => rebaseEdit(this.#session.shown, this.#session.keys), answer);
      }, 1);
    });
  }

  #push(make: () => readonly Op[], answer: Deferred<number>): void {
    const { session, status, closedError } = this.#link;
    if (status === "closed") return this.#refuse(answer, closedError);
    this.#attempt(make, answer, (ops) => {
      const push = session.push(ops);
      if (push) this.#answers.set(push, answer);
      else answer.resolve(session.version as number);
    });
    this.#link.pump();
  }

  /** Makes operations and applies them; rejects the answer if either throws. */
  #attempt(make: () => readonly Op[], answer: Deferred<number>, applyOps: (ops: readonly Op[]) => void): void {
    let ops: readonly Op[] = [];
    try {
      if (this.#session.keys.parts.state === false) throw new PatchError("the thread was opened without its state");
      ops = make();
      checkTexts(ops, this.#session.keys);
      applyOps(ops);
    } catch (error) {
      if (error instanceof PatchError) this.#refuse(answer, new PlaitError("bad_state", error.message), ops);
      // A mistake in the user's code is not reported to listeners.
      else answer.raise(error);
    }
  }

  /** Refuses an edit for which the session has no push. */
  #refuse(answer: Deferred<number>, error: PlaitError, ops: readonly Op[] = []): void {
    answer.reject(error);
    this.#listeners.refuse({ error, ops }, answer);
  }

  // Answers

  /** Returns the promise of a push. */
  answerOf(push: Pending): Deferred<number> | undefined {
    return this.#answers.get(push);
  }

  /** Settles the promise of a push that is applied or refused, and returns it. */
  settle(event: SessionEvent): Deferred<number> | undefined {
    if (!("push" in event)) return undefined;
    const answer = this.answerOf(event.push);
    this.#answers.delete(event.push);
    if (event.type === "applied") answer?.resolve(event.version);
    else answer?.reject(event.error);
    return answer;
  }

  /** Rejects the promises of all pushes, because no answer will come. */
  failAll(error: Error): void {
    for (const answer of this.#answers.values()) answer.reject(error);
    this.#answers.clear();
  }
}

/** The maximum operations of a push that the server accepts. */
const MOST_OPS = 4_000;

/** Throws a TypeError if a text is replaced whole, because everything that others type in it would be lost. */
function checkTexts(ops: readonly Op[], keys: Keys): void {
  if (keys.parts.text) return;
  for (const { op, path, value } of ops) {
    if (op === "replace" && typeof value === "string" && keys.hasText(path))
      missing(`${path} is a text, which`, "the option text");
  }
}

/**
 * Returns the operations that make `next`, which was made from `before`, from the shown state. Throws a PatchError if
 * an edit in between has removed the place that they change.
 */
function opsTo(next: Json, before: Document, shown: Document, keys: Keys): Op[] {
  const between = before === undefined ? [] : difference(before, shown, keys);
  const { ops, isLost } = rebase(diff(before, next, keys), between, shown, keys.parts.text);
  if (isLost) throw new PatchError("what this edit changes is gone");
  return ops[MOST_OPS] ? [{ op: "replace", path: "", value: apply(shown, ops) as Json }] : ops;
}
