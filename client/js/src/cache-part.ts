/** Reading offline, as an option of a client: the last confirmed state is kept in the page's IndexedDB. */

import { Cache, withCache } from "./cache.js";
import type { Shelf } from "./cache.js";
import { threadId } from "./options.js";
import type { Keeper, ThreadOptions } from "./options.js";
import type { CachePart } from "./parts.js";
import { Database } from "./shelf.js";

const found = (globalThis as { indexedDB?: IDBFactory }).indexedDB;
const cached = new WeakSet<object>();

/** Returns a part that keeps states on a shelf; without one, it keeps none. */
export function cacheOn(shelf: Shelf | undefined): CachePart {
  return {
    put(client, link, options) {
      const given = options as ThreadOptions<unknown>;
      if (typeof given.cacheKey !== "string" || given.cacheKey === "")
        throw new TypeError("cache needs the option cacheKey, such as the user's id: users may share a browser");
      if (given.state === false) throw new TypeError("a client without the state has none to keep");
      if (!shelf || cached.has(client)) return;
      cached.add(client);
      const carrier = link as { storage: Pick<Keeper, "claim"> | undefined };
      const cache = new Cache(shelf, () => JSON.stringify([given.cacheKey, threadId(given)]));
      carrier.storage = withCache(cache, carrier.storage as Keeper | undefined);
      Object.defineProperty(client, "savedAt", { get: () => cache.savedAt, configurable: true });
    },
  };
}

export const cache: CachePart = cacheOn(found && new Database(found));
