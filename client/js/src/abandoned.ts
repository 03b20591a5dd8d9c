/** Queues that closed tabs have left in a storage: sends each queue as the client that made it. */

import type { SessionEvent } from "./events.js";
import { Link } from "./link.js";
import { storageKey } from "./options.js";
import type { ThreadOptions } from "./options.js";
import { claimAbandoned, pageLocks } from "./storage.js";
import type { Slot, StorageLike } from "./storage.js";

export class AbandonedQueues {
  readonly #storage: StorageLike;
  readonly #options: ThreadOptions<unknown>;
  readonly #onEvent: (event: SessionEvent) => void;
  readonly #links = new Set<Link>();
  #isClosed = false;

  /** `onEvent` is told of the queues' pushes that the server refuses. */
  constructor(storage: StorageLike, options: ThreadOptions<unknown>, onEvent: (event: SessionEvent) => void) {
    this.#storage = storage;
    this.#options = options;
    this.#onEvent = onEvent;
  }

  /** Finds abandoned queues and sends their pushes. */
  async send(): Promise<void> {
    const locks = pageLocks();
    // A client id that the app has set belongs to no other tab.
    if (!locks || this.#options.client !== undefined) return;
    for await (const slot of claimAbandoned(this.#storage, storageKey(this.#options), locks)) {
      if (!this.#isClosed && slot.read()?.fold) this.#connect(slot);
      else slot.release();
    }
  }

  /** Stops; pushes without an answer stay in the storage. */
  close(): void {
    this.#isClosed = true;
    for (const link of [...this.#links]) link.close();
  }

  #connect(slot: Slot): void {
    const link: Link = new Link(this.#options, {
      onEvent: (event) => event.type === "refused" && this.#onEvent(event),
      onBytes: () => undefined,
      onUpdate: () => {
        if (link.session.pushes.length === 0) link.close();
      },
      onClosed: () => this.#links.delete(link),
    });
    this.#links.add(link);
    link.connect(slot);
  }
}
