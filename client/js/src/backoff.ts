/** How long to wait before the next attempt: longer with each one that has come to nothing. */

const FIRST_DELAY = 100;
const LONGEST_DELAY = 10_000;
/** A socket that was joined for so long has been of use. */
const STEADY = 10_000;

/** All times are in milliseconds. */
export class Backoff {
  #failures = 0;
  #joinedAt = Infinity;
  #wasAtOnce = false;

  /** A join alone is no success: what the client says next may be what it is closed for, each time. */
  joined(now: number): void {
    this.#joinedAt = now;
  }

  /** The server has carried something out: the next delay is the first again. */
  reset(): void {
    this.#failures = 0;
    this.#wasAtOnce = false;
  }

  /**
   * Returns how long to wait, now that a socket is gone or did not open; for a random number from 0 to 1. Not at all where
   * the server asks to come back at once, unless it has done so since the last socket that was of use.
   */
  delay(now: number, random: number, isAtOnce = false): number {
    if (now - this.#joinedAt >= STEADY) this.reset();
    this.#joinedAt = Infinity;
    if (isAtOnce && !this.#wasAtOnce) {
      this.#wasAtOnce = true;
      return 0;
    }
    return Math.min(LONGEST_DELAY, FIRST_DELAY * 2 ** this.#failures++) * (0.5 + random / 2);
  }
}
