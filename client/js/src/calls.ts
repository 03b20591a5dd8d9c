/** The calls that are under way on a socket. */

import type { Json, JsonObject } from "./json.js";
import type { Call } from "./protocol.js";

export class Calls {
  readonly #sent = new Set<number>();
  #next = 1;

  /** Returns the frame of a new call, which is under way once it was `sent`. */
  new(method: string, args: readonly Json[], kwargs: JsonObject): Call {
    return {
      type: "call",
      ref: this.#next++,
      method,
      ...(args.length > 0 && { args }),
      ...(Object.keys(kwargs).length > 0 && { kwargs }),
    };
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
