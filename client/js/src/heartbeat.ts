/** Detects a dead connection: asks for a sign of life after a silence, and gives up when that goes on. */

/** After how many seconds of silence to ping, and to open a new socket. */
const QUIET = 20;
const DEAD = 40;

export class Heartbeat {
  #heardAt = 0;
  #hasPinged = false;

  heard(now: number): void {
    this.#heardAt = now;
    this.#hasPinged = false;
  }

  get due(): number {
    return this.#heardAt + (this.#hasPinged ? DEAD : QUIET);
  }

  /** Returns what to do, if anything is due. */
  check(now: number): "ping" | "give up" | undefined {
    if (now >= this.#heardAt + DEAD) return "give up";
    if (now < this.due) return undefined;
    this.#hasPinged = true;
    return "ping";
  }
}
