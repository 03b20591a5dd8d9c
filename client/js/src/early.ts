/** What was asked for before there was a state, in its order: changes, and what must not overtake them. */

import { raise } from "./errors.js";

export class Early {
  #waiting: (() => void)[] = [];
  #changes = 0;

  /** How many changes wait. */
  get changes(): number {
    return this.#changes;
  }

  addChange(change: () => void): void {
    this.#changes++;
    this.#waiting.push(change);
  }

  /** Does something behind the changes that wait; at once when none does. */
  behind(act: () => void): void {
    if (this.#changes === 0) act();
    else this.#waiting.push(act);
  }

  /** There is a state, or there will be none. */
  run(): void {
    this.#changes = 0;
    for (const act of this.#waiting.splice(0)) {
      try {
        act();
      } catch (error) {
        raise(error);
      }
    }
  }
}
