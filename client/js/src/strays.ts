/** Queues that other clients have left in a storage, tabs that are gone: sends each as the client that it is of. */

import type { SessionEvent } from "./events.js";
import { Link } from "./link.js";
import type { ThreadOptions } from "./options.js";
import { abandoned, pageLocks, storageKey } from "./storage.js";
import type { Place } from "./storage.js";

export class Strays {
  readonly #options: ThreadOptions<unknown>;
  readonly #onEvent: (event: SessionEvent) => void;
  readonly #links = new Set<Link>();
  #isClosed = false;

  /** Tells what the server refuses of them. */
  constructor(options: ThreadOptions<unknown>, onEvent: (event: SessionEvent) => void) {
    this.#options = options;
    this.#onEvent = onEvent;
  }

  /** Looks for such queues, and sends what is in them. */
  async send(): Promise<void> {
    const { storage, client } = this.#options;
    const locks = pageLocks();
    // An id of the app's own is no other tab's.
    if (!storage || !locks || client !== undefined) return;
    for await (const place of abandoned(storage, storageKey(this.#options), locks)) {
      if (!this.#isClosed && place.read()?.fold) this.#carry(place);
      else place.release();
    }
  }

  /** Leaves what was not answered where it is. */
  close(): void {
    this.#isClosed = true;
    for (const link of [...this.#links]) link.close();
  }

  #carry(place: Place): void {
    const link: Link = new Link(this.#options, {
      onEvent: (event) => event.type === "refused" && this.#onEvent(event),
      onBytes: () => undefined,
      onMoved: () => {
        if (link.session.pushes.length === 0) link.close();
      },
      onEnd: () => this.#links.delete(link),
    });
    this.#links.add(link);
    link.connect(place);
  }
}
