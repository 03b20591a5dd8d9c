/** A frame of which only the last one counts, where the server takes no more: it is sent when that is over. */

/** So far apart, in seconds, are those that the server has refused before; it gathers them for as long itself. */
const APART = 0.05;
/** What the server has not taken waits so many seconds when it does not say how long. */
const RETRY_AFTER = 1;

export class Latest<Frame> {
  #frame: Frame | undefined = undefined;
  #isWaiting = false;
  #freeAt = 0;
  #apart = 0;

  /** The next one to send. */
  put(frame: Frame): void {
    this.#frame = frame;
    this.#isWaiting = true;
  }

  /** Returns the one to send by this time, if there is any. */
  take(now: number): Frame | undefined {
    if (!this.#isWaiting || now < this.#freeAt) return undefined;
    this.#isWaiting = false;
    if (this.#apart > 0) this.#freeAt = now + this.#apart;
    return this.#frame;
  }

  /** The server has refused one, and takes more after so many seconds. */
  refused(wait: number | null | undefined, now: number): void {
    this.#isWaiting = this.#frame !== undefined;
    this.#apart = APART;
    this.#freeAt = Math.max(this.#freeAt, now + Math.max(wait ?? RETRY_AFTER, APART));
  }

  /** When the next one may be sent. */
  get due(): number {
    return this.#isWaiting ? this.#freeAt : Infinity;
  }

  /** A new socket: it has refused nothing, and what is to be sent on it is put again. */
  reset(): void {
    this.#frame = undefined;
    this.#isWaiting = false;
    this.#freeAt = this.#apart = 0;
  }
}
