import { raise } from "./errors.js";

/** A set of functions that are told; one that throws keeps nobody else from being told. */
export class Listeners<Args extends unknown[]> {
  readonly #listeners = new Set<(...args: Args) => void>();

  get isEmpty(): boolean {
    return this.#listeners.size === 0;
  }

  /** Returns the function that takes it out again. */
  add(listener: (...args: Args) => void): () => void {
    // Each is told as often as it was added.
    const own = (...args: Args) => listener(...args);
    this.#listeners.add(own);
    return () => void this.#listeners.delete(own);
  }

  tell(...args: Args): void {
    for (const listener of [...this.#listeners]) {
      // Another one may have taken it out meanwhile.
      if (!this.#listeners.has(listener)) continue;
      try {
        listener(...args);
      } catch (error) {
        raise(error);
      }
    }
  }
}
