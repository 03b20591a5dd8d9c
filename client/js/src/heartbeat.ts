/** Detects a dead connection: pings after a silence, and gives up after a second one. */

/** In seconds. */
const SILENCE = 20;

export class Heartbeat {
  #heardAt = 0;
  // A page that slept was silent through no fault of the server, so it pings before it gives up.
  #pingedAt: number | undefined;

  heard(now: number): void {
    this.#heardAt = now;
    this.#pingedAt = undefined;
  }

  get due(): number {
    return (this.#pingedAt ?? this.#heardAt) + SILENCE;
  }

  /** Returns the action that is due, if any. */
  check(now: number): "ping" | "give up" | undefined {
    if (now < this.due) return undefined;
    if (this.#pingedAt !== undefined) return "give up";
    this.#pingedAt = now;
    return "ping";
  }
}
