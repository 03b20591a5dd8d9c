/** How long to wait before the next attempt to connect: longer after each failure. */

const FIRST_DELAY = 100;
const LONGEST_DELAY = 10_000;
/** A socket that stayed joined for this long was a success. */
const STEADY = 10_000;

/** All times are in milliseconds. */
export class Backoff {
  #failures = 0;
  #joinedAt = Infinity;
  #hasRetriedAtOnce = false;

  /** The thread is joined; that alone is not a success: the client's next frame may close the socket each time. */
  joined(now: number): void {
    this.#joinedAt = now;
  }

  /** The server has answered a request: the next delay is the shortest again. */
  reset(): void {
    this.#failures = 0;
    this.#hasRetriedAtOnce = false;
  }

  /**
   * Returns how long to wait after a socket was closed or did not open; `random` is from 0 to 1. It is 0 if the server
   * allows to reconnect at once, but only once until a socket is a success.
   */
  delay(now: number, random: number, mayRetryAtOnce = false): number {
    if (now - this.#joinedAt >= STEADY) this.reset();
    this.#joinedAt = Infinity;
    if (mayRetryAtOnce && !this.#hasRetriedAtOnce) {
      this.#hasRetriedAtOnce = true;
      return 0;
    }
    return Math.min(LONGEST_DELAY, FIRST_DELAY * 2 ** this.#failures++) * (0.5 + random / 2);
  }
}
