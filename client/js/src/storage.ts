/** Keeps a client's id and its unanswered pushes beyond a page, for one client at a time. */

import { readBacklog } from "./backlog.js";
import type { Backlog } from "./backlog.js";

/** What of localStorage is used. */
export interface StorageLike {
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
  removeItem(key: string): void;
}

/** What of navigator.locks is used. */
export interface LocksLike {
  request(
    name: string,
    options: { ifAvailable?: boolean; signal?: AbortSignal },
    hold: (lock: unknown) => Promise<void> | undefined,
  ): Promise<unknown>;
}

const LONGEST_WAIT = 500;

/** A place in a storage that is this client's alone, until it is released. */
export class Place {
  readonly #storage: StorageLike;
  readonly #key: string;
  readonly release: () => void;

  constructor(storage: StorageLike, key: string, release: () => void) {
    this.#storage = storage;
    this.#key = key;
    this.release = release;
  }

  read(): Backlog | undefined {
    const text = attempt(() => this.#storage.getItem(this.#key));
    return typeof text === "string" ? readBacklog(text) : undefined;
  }

  write(backlog: Backlog): void {
    try {
      this.#storage.setItem(this.#key, JSON.stringify(backlog));
    } catch {
      // The storage is full. An old queue would be worse than none: its numbers would be given out twice.
      attempt(() => this.#storage.removeItem(this.#key));
    }
  }
}

/** Returns what a storage gives; undefined when it refuses. */
function attempt<T>(use: () => T): T | undefined {
  try {
    return use();
  } catch {
    return undefined;
  }
}

/**
 * Returns the first place under `key` that no other client has: `key` itself, then `key#2` and so on, so that two tabs
 * are two clients. Without locks the storage has to be the client's own, as a tab's sessionStorage is.
 */
export async function claim(storage: StorageLike, key: string, locks: LocksLike | undefined): Promise<Place> {
  if (!locks) return new Place(storage, key, () => undefined);
  for (let number = 1; ; number++) {
    const name = number === 1 ? key : `${key}#${number}`;
    // The page before this one may still be holding what it has left behind.
    const waits = number === 1 && new Place(storage, name, () => undefined).read()?.fold !== undefined;
    const release = await hold(
      locks,
      name,
      waits ? { signal: AbortSignal.timeout(LONGEST_WAIT) } : { ifAvailable: true },
    );
    if (release) return new Place(storage, name, release);
  }
}

function hold(
  locks: LocksLike,
  name: string,
  options: { ifAvailable?: boolean; signal?: AbortSignal },
): Promise<(() => void) | undefined> {
  return new Promise((resolve, reject) => {
    const held = (lock: unknown) => {
      if (lock) return new Promise<void>((release) => resolve(release));
      resolve(undefined);
      return undefined;
    };
    locks.request(name, options, held).catch((error: unknown) => {
      if (options.signal?.aborted) resolve(undefined);
      else reject(error);
    });
  });
}
