/** Calls methods through a session, and gives each caller the stream of its chunks. */

import type { Answers } from "./answers.js";
import { Deferred } from "./deferred.js";
import type { Early } from "./early.js";
import { PlaitError } from "./errors.js";
import { plain } from "./json.js";
import type { Json, JsonObject } from "./json.js";
import type { Link } from "./link.js";
import { untilSettled } from "./signals.js";
import { Chunks } from "./stream.js";

/** What a call may have beside its method. */
export interface CallOptions {
  args?: readonly unknown[];
  kwargs?: { readonly [name: string]: unknown };
  signal?: AbortSignal;
}

export class Caller {
  readonly #link: Link;
  readonly #early: Early;
  readonly #answers: Answers;

  constructor(link: Link, early: Early, answers: Answers) {
    this.#link = link;
    this.#early = early;
    this.#answers = answers;
  }

  /** Calls a method as `call` does. That it fails is heard of when nobody waits, unless its own side has ended it. */
  result(method: string, options: CallOptions): Promise<unknown> {
    const result = new Deferred<unknown>();
    this.call(method, options).result.then(result.resolve, (error: unknown) => {
      const isClosed = this.#link.status === "closed" && !this.#link.error;
      if (isClosed || options.signal?.aborted) result.reject(error);
      else result.raise(error);
    });
    return result.promise;
  }

  /** Calls a method behind what was asked for before it; the chunks end where it may not, or its signal is aborted. */
  call(method: string, { args = [], kwargs = {}, signal }: CallOptions): Chunks<unknown, unknown> {
    let ref = 0;
    const answer = new Chunks<unknown, unknown>(() => cancel(new PlaitError("cancelled", `${method} was cancelled`)));
    const cancel = (reason: unknown) => {
      answer.fail(reason);
      if (!this.#answers.dropCall(ref)) return;
      this.#link.session.cancel(ref);
      this.#link.pump();
    };
    const begin = (call: readonly [string, Json[], JsonObject]) => {
      if (answer.isEnded) return;
      if (this.#link.status === "closed") return answer.fail(this.#link.closedError);
      ref = this.#link.session.call(...call);
      this.#answers.addCall(ref, answer);
      this.#link.pump();
    };
    try {
      if (signal?.aborted) throw signal.reason;
      const call = [plain(method) as string, plain(args) as Json[], plain(kwargs) as JsonObject] as const;
      this.#early.inTurn(() => begin(call));
      if (signal) untilSettled(signal, answer.result, cancel);
    } catch (error) {
      answer.fail(error);
    }
    return answer;
  }
}
