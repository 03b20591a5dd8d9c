/** What was asked for before there was a state, in its order: changes, and what must not overtake them. */

import { raise } from "./errors.js";

interface Waiting {
  act: () => void;
  isChange: boolean;
}

export class Early {
  readonly #isOver: () => boolean;
  readonly #waiting: Waiting[] = [];
  #changes = 0;

  /** `isOver` tells whether there is a state, or will be none; `run` is to be called when that has come. */
  constructor(isOver: () => boolean) {
    this.#isOver = isOver;
  }

  /** How many changes wait. */
  get changes(): number {
    return this.#changes;
  }

  /** Whether what is asked for waits. */
  get isWaiting(): boolean {
    return this.#waiting.length > 0 || !this.#isOver();
  }

  /** Does something behind all that waits; at once when nothing does, and nothing needs to. */
  inTurn(act: () => void, { isChange = false } = {}): void {
    if (!this.isWaiting) return act();
    this.#waiting.push({ act, isChange });
    if (isChange) this.#changes++;
  }

  /** Does all that waits, and what is asked for meanwhile behind it. */
  run(): void {
    for (let next = this.#waiting.shift(); next; next = this.#waiting.shift()) {
      if (next.isChange) this.#changes--;
      try {
        next.act();
      } catch (error) {
        raise(error);
      }
    }
  }
}
