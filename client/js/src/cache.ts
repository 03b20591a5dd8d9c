/** The last confirmed state of a thread, kept for the next page: it is shown until the thread is joined. */

import type { PlaitError } from "./errors.js";
import { parse, stringify } from "./exact.js";
import type { Places } from "./fold.js";
import { freeze } from "./json.js";
import type { Document } from "./json.js";
import type { Keeper, ThreadOptions } from "./options.js";
import { clock, randomId } from "./platform.js";
import type { Version } from "./protocol.js";
import type { Session } from "./session.js";
import type { KeptSlot } from "./storage.js";

/** The milliseconds between two writes, and after which an unchanged state is written again. */
const SPACING = 1_000;
const RENEWAL = 12 * 3_600_000;
/** The milliseconds to wait for the entry before connecting. */
const PATIENCE = 500;
/** The close codes after which the client may not see the state, or there is none. */
const CLEARING = [4401, 4403, 4404, 4409, 4410];

/** The state of one thread for one user, or the note that it was cleared. */
export interface Entry {
  /** In milliseconds, as `Date.now()`. */
  savedAt: number;
  text?: string;
  /** Another one after each time that a server has refused the user. */
  mark?: string;
}

export interface Shelf {
  /**
   * Replaces an entry by the result of `change` for it, unless that is undefined; no other tab changes it in between.
   * Resolves to the entry before.
   */
  change(key: string, change: (entry: Entry | undefined) => Entry | undefined): Promise<Entry | undefined>;
}

/** A state as JSON in an entry. */
interface Kept extends Places {
  at: Version;
  confirmed?: Document;
}

/** Keeps the state of one client, besides what another keeper keeps. */
export class Cache implements KeptSlot {
  /** When the shown state was kept, while it is that of an earlier page; then, when this page kept one last. */
  savedAt: number | undefined;
  readonly #shelf: Shelf;
  readonly #key: () => string;
  #inner: KeptSlot | undefined;
  #entry: Entry | undefined;
  // The mark of the entry at the last join. Another mark says that another tab has cleared the entry since.
  #mark: Promise<string | undefined> = Promise.resolve(undefined);
  #session: Session | undefined;
  #isJoined = false;
  #isEnded = false;
  #keptAt: Version | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  // Whether a write is to come, and the earliest time for it.
  #isDue = false;
  #freeAt = 0;

  constructor(shelf: Shelf, key: () => string) {
    this.#shelf = shelf;
    this.#key = key;
  }

  /** Reads the entry, and claims a slot of the other keeper. */
  async claim(keeper: Keeper | undefined, ...how: Parameters<Keeper["claim"]>): Promise<this> {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<undefined>((resolve) => {
      timer = setTimeout(() => resolve(undefined), PATIENCE);
    });
    const read = Promise.race([this.#change(() => undefined), late]);
    [this.#entry, this.#inner] = await Promise.all([read, keeper?.claim(...how).catch(() => undefined)]);
    clearTimeout(timer);
    return this;
  }

  // The slot of a link

  get isKept(): boolean {
    return this.#inner?.isKept ?? false;
  }

  restore(session: Session): void {
    this.#inner?.restore(session);
    // Kept pushes come with the state on which they were made.
    if (session.epoch !== undefined || this.#entry?.text === undefined) return;
    try {
      const { at, confirmed, ...places } = parse(this.#entry.text) as unknown as Kept;
      const { fold } = session.queue;
      fold.declare(places);
      fold.confirmed = freeze(confirmed);
      fold.refold([]);
      fold.at = at;
      this.savedAt = this.#entry.savedAt;
      session.tell({ type: "restored" });
    } catch {
      // It is not what this version writes.
    }
  }

  keep(session: Session): void {
    this.#inner?.keep(session);
    if (this.#isEnded) return;
    this.#session = session;
    const wasJoined = this.#isJoined;
    this.#isJoined = session.phase === "joined";
    if (!this.#isJoined) return;
    const { at } = session.queue.fold;
    if (!wasJoined) this.#join(session.epoch);
    if (!wasJoined || at !== this.#keptAt) this.#writeSoon();
  }

  release(error?: PlaitError): void {
    this.#inner?.release();
    clearTimeout(this.#timer);
    this.#isEnded = true;
    if (CLEARING.includes(error?.closeCode ?? 0)) void this.#clear(randomId());
    else if (this.#isDue) void this.#write();
  }

  // The entry

  #join(epoch: string | undefined): void {
    const known = this.#entry;
    this.#entry = undefined;
    // The state of a history that is gone is of no use.
    if (known?.text !== undefined && this.#epochOf(known.text) !== epoch) void this.#clear(known.mark);
    this.#mark = this.#change(() => undefined).then((entry) => entry?.mark);
  }

  #epochOf(text: string): string | undefined {
    try {
      return (parse(text) as unknown as Kept).at[0];
    } catch {
      return undefined;
    }
  }

  #writeSoon(): void {
    if (this.#isDue) return;
    this.#isDue = true;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#write(), Math.max(0, this.#freeAt - clock.now()));
  }

  async #write(): Promise<void> {
    const { at, confirmed, places } = (this.#session as Session).queue.fold;
    this.#keptAt = at;
    this.#isDue = false;
    this.#freeAt = clock.now() + SPACING;
    if (!this.#isEnded) this.#timer = setTimeout(() => this.#isJoined && void this.#write(), RENEWAL);
    const text = stringify({ at, confirmed, ...places });
    const mark = await this.#mark;
    const savedAt = Date.now();
    const entry = { savedAt, text, ...(mark !== undefined && { mark }) };
    let isKept = false;
    await this.#change((known) => {
      isKept = known?.mark === mark;
      return isKept ? entry : undefined;
    });
    if (isKept) this.savedAt = savedAt;
  }

  async #clear(mark: string | undefined): Promise<void> {
    this.savedAt = undefined;
    await this.#change(() => ({ savedAt: Date.now(), ...(mark !== undefined && { mark }) }));
  }

  /** Changes the entry; a shelf that fails is like an empty one. */
  #change(change: (entry: Entry | undefined) => Entry | undefined): Promise<Entry | undefined> {
    return this.#shelf.change(this.#key(), change).catch(() => undefined);
  }
}

/** Returns a keeper that also keeps the state in a cache. */
export function withCache(cache: Cache, keeper: Keeper | undefined): Pick<Keeper, "claim"> {
  return { claim: (options: ThreadOptions<unknown>, isClosing) => cache.claim(keeper, options, isClosing) };
}
