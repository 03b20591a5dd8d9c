/** Storages and locks as pages have them, within one process. */

import type { StorageLike } from "../src/index.js";
import type { Entry, Shelf } from "../src/cache.js";
import type { LocksLike } from "../src/storage.js";

/** What localStorage does, in memory; a full one takes nothing more. */
export class MemoryStorage implements StorageLike {
  readonly items = new Map<string, string>();
  isFull = false;

  getItem(key: string): string | null {
    return this.items.get(key) ?? null;
  }

  setItem(key: string, value: string): void {
    if (this.isFull) throw new DOMException("full", "QuotaExceededError");
    this.items.set(key, value);
  }

  removeItem(key: string): void {
    this.items.delete(key);
  }
}

/** What navigator.locks does, within one process. */
export class Locks implements LocksLike {
  readonly #held = new Map<string, Promise<void>>();

  async request(name: string, options: Parameters<LocksLike["request"]>[1], hold: Parameters<LocksLike["request"]>[2]) {
    while (this.#held.has(name)) {
      if (options.ifAvailable) return hold(null);
      const aborted = new Promise<never>((_, reject) => {
        options.signal?.addEventListener("abort", () => reject(options.signal?.reason as Error), { once: true });
      });
      await Promise.race([this.#held.get(name), aborted]);
    }
    const held = Promise.resolve(hold({ name }));
    this.#held.set(
      name,
      held.finally(() => this.#held.delete(name)),
    );
    return held;
  }
}

/** What IndexedDB does for the tabs of a page, within one process. */
export class MemoryShelf implements Shelf {
  readonly entries = new Map<string, Entry>();
  /** How often an entry was asked for, and written. */
  asks = 0;
  writes = 0;
  isBroken = false;

  change(key: string, change: (entry: Entry | undefined) => Entry | undefined): Promise<Entry | undefined> {
    if (this.isBroken) return Promise.reject(new DOMException("broken", "UnknownError"));
    this.asks++;
    const before = this.entries.get(key);
    const next = change(before);
    if (next) {
      this.entries.set(key, next);
      this.writes++;
    }
    return Promise.resolve(before);
  }
}
