/** The calls that are under way on a socket. */

import type { Json } from "./json.js";
import type { Call } from "./messages.js";

export class Calls {
  readonly #sent = new Set<number>();
  #next = 1;

  /** Returns the frame of a new call, which is under way once it was `sent`. */
  new(method: string, args: readonly Json[], kwargs: NonNullable<Call["kwargs"]>): Call {
    const call: Call = { type: "call", ref: this.#next++, method };
    if (args.length > 0) call.args = args;
    if (Object.keys(kwargs).length > 0) call.kwargs = kwargs;
    return call;
  }

  sent(ref: number): void {
    this.#sent.add(ref);
  }

  isUnderWay(ref: number): boolean {
    return this.#sent.has(ref);
  }

  /** Tells whether a call was under way, which it is no more. */
  end(ref: number): boolean {
    return this.#sent.delete(ref);
  }

  /** Returns the refs of all that were under way, and are lost with their socket. */
  endAll(): number[] {
    const refs = [...this.#sent];
    this.#sent.clear();
    return refs;
  }
}
