/** Keeps a client's id and its unanswered pushes for the next page, in a slot that one client has at a time. */

import { readBacklog, restore, takeBacklog } from "./backlog.js";
import type { Backlog } from "./backlog.js";
import type { PlaitError } from "./errors.js";
import { stringify } from "./exact.js";
import { randomId } from "./platform.js";
import type { Session } from "./session.js";

/** The used part of localStorage. */
export interface StorageLike {
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
  removeItem(key: string): void;
}

/** The used part of navigator.locks. */
export interface LocksLike {
  request(
    name: string,
    options: { ifAvailable?: boolean; signal?: AbortSignal },
    hold: (lock: unknown) => Promise<void> | undefined,
  ): Promise<unknown>;
}

/** The milliseconds to wait for the lock of the page before. */
const LOCK_TIMEOUT = 500;
/** The maximum number of clients of a thread that can keep data at a time; few enough to look through them all. */
const SLOTS = 64;
/** The milliseconds that other pages have to say that they use a client id. */
const ANSWER_TIMEOUT = 100;

/** What a link does with a slot. */
export interface KeptSlot {
  /** Whether unanswered pushes are kept. */
  readonly isKept: boolean;
  /** Makes a session continue with the stored data. */
  restore(session: Session): void;
  /** Keeps the changes of a session; must be called before its frames are sent. */
  keep(session: Session): void;
  /** Gives the slot to other clients; `error` says why the server has closed this one. */
  release(error?: PlaitError): void;
}

/** A key in a storage that only this client uses until it releases it. */
export class Slot implements KeptSlot {
  readonly #storage: StorageLike;
  readonly #key: string;
  readonly release: () => void;
  #isKept = true;
  #isIgnored = false;

  constructor(storage: StorageLike, key: string, release: () => void) {
    this.#storage = storage;
    this.#key = key;
    this.release = release;
  }

  /** Whether the storage has the data that was written last. */
  get isKept(): boolean {
    return this.#isKept;
  }

  /** Makes `read` ignore the stored data, because it belongs to another client. */
  ignore(): void {
    this.#isIgnored = true;
  }

  read(): Backlog | undefined {
    if (this.#isIgnored) return undefined;
    const text = attempt(() => this.#storage.getItem(this.#key));
    return typeof text === "string" ? readBacklog(text) : undefined;
  }

  /** Makes a session continue with the stored data. */
  restore(session: Session): void {
    const backlog = this.read();
    if (backlog) restore(session, backlog);
  }

  /** Keeps the changes of a session; must be called before its frames are sent. */
  keep(session: Session): void {
    const backlog = takeBacklog(session);
    if (backlog) this.write(backlog);
  }

  write(backlog: Backlog): void {
    try {
      this.#storage.setItem(this.#key, stringify(backlog));
      this.#isKept = true;
      this.#isIgnored = false;
    } catch {
      // The storage is full. An outdated queue would be worse than none: its refs would be used a second time.
      attempt(() => this.#storage.removeItem(this.#key));
      this.#isKept = false;
    }
  }
}

/** Returns what `use` returns; undefined when it throws, as a storage may. */
function attempt<T>(use: () => T): T | undefined {
  try {
    return use();
  } catch {
    return undefined;
  }
}

// Slots

/** Returns the locks that keep tabs out of each other's slots; undefined on pages without TLS, which have none. */
export function pageLocks(): LocksLike | undefined {
  return (globalThis.navigator as { locks?: LocksLike } | undefined)?.locks;
}

/**
 * Returns a slot that no other client has: one with a queue if there is any, else the first free one of `key`, `key#2`
 * and so on. Without locks the storage must be the tab's own, as sessionStorage is; a queue that was copied with a
 * duplicated tab is ignored, and one whose client `isClosing` is waited for.
 */
export async function claimSlot(
  storage: StorageLike,
  key: string,
  locks: LocksLike | undefined,
  isClosing = () => false,
): Promise<Slot> {
  if (!locks) return claimUnlocked(storage, key, isClosing);
  const queues = queuesIn(storage, key);
  for (const [index, name] of [...queues, ...slotsOf(key)].entries()) {
    // The page before this one may not have released its lock yet.
    const waits = index === 0 && queues.length > 0;
    const release = await takeLock(
      locks,
      name,
      waits ? { signal: AbortSignal.timeout(LOCK_TIMEOUT) } : { ifAvailable: true },
    );
    if (release) return new Slot(storage, name, release);
  }
  throw new Error(`all ${SLOTS} slots are taken`);
}

async function claimUnlocked(storage: StorageLike, key: string, isClosing: () => boolean): Promise<Slot> {
  if (!("BroadcastChannel" in globalThis)) return new Slot(storage, key, () => undefined);
  const slot: Slot = new Slot(storage, key, () => duplicates.close());
  const duplicates = new DuplicateCheck(key, () => slot.read()?.client, isClosing);
  if (await duplicates.hasDuplicate()) slot.ignore();
  return slot;
}

/** Yields the slots that hold a queue of a closed client; each must be released. */
export async function* claimAbandoned(storage: StorageLike, key: string, locks: LocksLike): AsyncGenerator<Slot> {
  for (const name of queuesIn(storage, key)) {
    const release = await takeLock(locks, name, { ifAvailable: true });
    if (release) yield new Slot(storage, name, release);
  }
}

function queuesIn(storage: StorageLike, key: string): string[] {
  return slotsOf(key).filter((name) => new Slot(storage, name, () => undefined).read()?.fold);
}

function slotsOf(key: string): string[] {
  return Array.from({ length: SLOTS }, (_, index) => (index === 0 ? key : `${key}#${index + 1}`));
}

/** Resolves to the function that releases the lock; to undefined if the lock cannot be had. */
function takeLock(
  locks: LocksLike,
  name: string,
  options: { ifAvailable?: boolean; signal?: AbortSignal },
): Promise<(() => void) | undefined> {
  return new Promise((resolve, reject) => {
    const hold = (lock: unknown) => {
      if (lock) return new Promise<void>(resolve);
      resolve(undefined);
      return undefined;
    };
    locks.request(name, options, hold).catch((error: unknown) => {
      if (options.signal?.aborted) resolve(undefined);
      else reject(error);
    });
  });
}

// Duplicated tabs

/** The question whether a page uses a client id, or the answer to `to` that one does, perhaps not for long. */
type Notice = { client: string; asker: string } | { client: string; to: string; isClosing: boolean };

/** Finds out, without locks, whether another page uses the same client id, as a duplicated tab does. */
export class DuplicateCheck {
  readonly #channel: BroadcastChannel;
  readonly #client: () => string | undefined;
  readonly #isClosing: () => boolean;
  readonly #id = randomId();
  #isAsking = false;
  #onAnswer: (notice: { isClosing: boolean }) => void = () => undefined;

  /** Answers other pages with the same `key` that ask for the id that `client` returns. */
  constructor(key: string, client: () => string | undefined, isClosing: () => boolean) {
    this.#client = client;
    this.#isClosing = isClosing;
    this.#channel = new BroadcastChannel(key);
    this.#channel.onmessage = ({ data }) => this.#receive(data as Notice);
    // An open channel would keep Node running.
    (this.#channel as { unref?: () => void }).unref?.();
  }

  /**
   * Tells whether another page uses the client id; of two pages that ask at the same time, one gets false.
   * Waits for a client that is closing, which writes to the storage until it is closed.
   */
  async hasDuplicate(): Promise<boolean> {
    const client = this.#client();
    if (client === undefined) return false;
    this.#isAsking = true;
    let found = await this.#ask(client);
    while (found === "closing" && !this.#isClosing()) found = await this.#ask(client);
    this.#isAsking = false;
    return found === "open";
  }

  close(): void {
    this.#channel.close();
  }

  #ask(client: string): Promise<"open" | "closing" | undefined> {
    return new Promise((resolve) => {
      let hasClosing = false;
      const timer = setTimeout(() => resolve(hasClosing ? "closing" : undefined), ANSWER_TIMEOUT);
      this.#onAnswer = ({ isClosing }) => {
        hasClosing ||= isClosing;
        if (isClosing) return;
        clearTimeout(timer);
        resolve("open");
      };
      this.#post({ client, asker: this.#id });
    });
  }

  #receive(notice: Notice): void {
    if (notice.client !== this.#client()) return;
    if ("to" in notice) return notice.to === this.#id ? this.#onAnswer(notice) : undefined;
    if (this.#isAsking && notice.asker > this.#id) this.#onAnswer({ isClosing: false });
    else this.#post({ client: notice.client, to: notice.asker, isClosing: this.#isClosing() });
  }

  #post(notice: Notice): void {
    this.#channel.postMessage(notice);
  }
}
