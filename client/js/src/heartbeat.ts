/** Notices a silent server: asks after a while whether somebody is there, and gives up after as long again. */

const PATIENCE = 20;

export class Heartbeat {
  #heardAt = 0;
  // A page that slept has heard nothing for long through no fault of the server: it asks before it gives up.
  #askedAt: number | undefined = undefined;

  heard(now: number): void {
    this.#heardAt = now;
    this.#askedAt = undefined;
  }

  get due(): number {
    return (this.#askedAt ?? this.#heardAt) + PATIENCE;
  }

  /** Returns what is to be done, if anything is due. */
  check(now: number): "ask" | "give up" | undefined {
    if (now < this.due) return undefined;
    if (this.#askedAt !== undefined) return "give up";
    this.#askedAt = now;
    return "ask";
  }
}
