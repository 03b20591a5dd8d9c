/** Keeps a client's id and its unanswered pushes beyond a page, for one client at a time. */

import { threadId } from "./address.js";
import { readBacklog } from "./backlog.js";
import type { Backlog } from "./backlog.js";
import { Copies } from "./copies.js";
import { stringify } from "./exact.js";
import type { ThreadOptions } from "./options.js";

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
/** So many clients of a thread can keep something at a time; they are few enough to be looked through. */
const PLACES = 64;

/** A place in a storage that is this client's alone, until it is released. */
export class Place {
  readonly #storage: StorageLike;
  readonly #key: string;
  readonly release: () => void;
  #keeps = true;
  #isEmpty = false;

  constructor(storage: StorageLike, key: string, release: () => void) {
    this.#storage = storage;
    this.#key = key;
    this.release = release;
  }

  /** Whether it has what was written last. */
  get keeps(): boolean {
    return this.#keeps;
  }

  /** What is there is somebody else's: it is not read. */
  empty(): void {
    this.#isEmpty = true;
  }

  read(): Backlog | undefined {
    if (this.#isEmpty) return undefined;
    const text = attempt(() => this.#storage.getItem(this.#key));
    return typeof text === "string" ? readBacklog(text) : undefined;
  }

  write(backlog: Backlog): void {
    try {
      this.#storage.setItem(this.#key, stringify(backlog));
      this.#keeps = true;
      this.#isEmpty = false;
    } catch {
      // The storage is full. An old queue would be worse than none: its numbers would be given out twice.
      attempt(() => this.#storage.removeItem(this.#key));
      this.#keeps = false;
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

/** What keeps tabs out of each other's places, where there is such. */
export function pageLocks(): LocksLike | undefined {
  return (globalThis.navigator as { locks?: LocksLike } | undefined)?.locks;
}

/** Returns the key under which the clients of a thread have their places; one with an id of its own shares with none. */
export function storageKey(options: ThreadOptions<unknown>): string {
  const key = `plait:${threadId(options)}`;
  return options.client === undefined ? key : `${key} ${options.client}`;
}

/**
 * Returns a place under `key` that no other client has: one with a queue if there is any, else the first of `key`
 * itself, `key#2` and so on, so that two tabs are two clients. Without locks the storage has to be the client's own, as a
 * tab's sessionStorage is; what another page goes on with, of which that is a copy, is not read.
 */
export async function claim(storage: StorageLike, key: string, locks: LocksLike | undefined): Promise<Place> {
  if (!locks) return claimAlone(storage, key);
  const queues = queuesIn(storage, key);
  for (const [index, name] of [...queues, ...placesOf(key)].entries()) {
    // The page before this one may still be holding what it has left behind.
    const waits = index === 0 && queues.length > 0;
    const release = await hold(
      locks,
      name,
      waits ? { signal: AbortSignal.timeout(LONGEST_WAIT) } : { ifAvailable: true },
    );
    if (release) return new Place(storage, name, release);
  }
  throw new Error("all places are taken");
}

async function claimAlone(storage: StorageLike, key: string): Promise<Place> {
  if (!("BroadcastChannel" in globalThis)) return new Place(storage, key, () => undefined);
  const place: Place = new Place(storage, key, () => copies.close());
  const copies = new Copies(key, () => place.read()?.client);
  if (await copies.ask()) place.empty();
  return place;
}

/** Yields the places with a queue whose clients are gone; each is to be released. */
export async function* abandoned(storage: StorageLike, key: string, locks: LocksLike): AsyncGenerator<Place> {
  for (const name of queuesIn(storage, key)) {
    const release = await hold(locks, name, { ifAvailable: true });
    if (release) yield new Place(storage, name, release);
  }
}

function queuesIn(storage: StorageLike, key: string): string[] {
  return placesOf(key).filter((name) => new Place(storage, name, () => undefined).read()?.fold);
}

function placesOf(key: string): string[] {
  return Array.from({ length: PLACES }, (_, index) => (index === 0 ? key : `${key}#${index + 1}`));
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
