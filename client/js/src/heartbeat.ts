/** Detects a dead connection: pings after a silence, or in doubt, and gives up if no answer comes. */

/** In seconds. */
const SILENCE = 20;
/** The seconds in which the server must answer when there is a reason to doubt the connection. */
const DOUBT = 2;

export class Heartbeat {
  /** When to call `check`; set by `heard`. */
  due!: number;
  // A page that slept was silent through no fault of the server, so it pings before it gives up.
  #hasAsked = false;

  heard(now: number): void {
    this.#hasAsked = false;
    this.due = now + SILENCE;
  }

  /** Returns the action that is due, if any. */
  check(now: number): "ping" | "give up" | undefined {
    if (now < this.due) return undefined;
    return this.#hasAsked ? "give up" : this.#ask(now, SILENCE);
  }

  /** Returns the action if the connection may be dead; none if an answer must come as soon anyway. */
  doubt(now: number): "ping" | undefined {
    const isAsked = this.#hasAsked && now < this.due && this.due <= now + DOUBT;
    return isAsked ? undefined : this.#ask(now, DOUBT);
  }

  #ask(now: number, patience: number): "ping" {
    this.#hasAsked = true;
    this.due = now + patience;
    return "ping";
  }
}
