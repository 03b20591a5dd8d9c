/** A shelf in IndexedDB, which all tabs of a page share. */

import type { Entry, Shelf } from "./cache.js";

const STATES = "states";
/** The milliseconds after which a state that no page has kept again is removed. */
const EXPIRY = 30 * 24 * 3_600_000;

export class Database implements Shelf {
  readonly #factory: IDBFactory;
  #opened: Promise<IDBDatabase> | undefined;

  constructor(factory: IDBFactory) {
    this.#factory = factory;
  }

  async change(key: string, change: (entry: Entry | undefined) => Entry | undefined): Promise<Entry | undefined> {
    const database = await (this.#opened ??= this.#open());
    return new Promise((resolve, reject) => {
      const transaction = database.transaction(STATES, "readwrite");
      const store = transaction.objectStore(STATES);
      const read = store.get(key) as IDBRequest<Entry | undefined>;
      read.onsuccess = () => {
        const next = change(read.result);
        if (next) store.put(next, key);
      };
      transaction.oncomplete = () => resolve(read.result);
      transaction.onabort = () => reject(transaction.error as Error);
    });
  }

  #open(): Promise<IDBDatabase> {
    return new Promise((resolve, reject) => {
      const request = this.#factory.open("plait", 1);
      request.onupgradeneeded = () => request.result.createObjectStore(STATES).createIndex("savedAt", "savedAt");
      request.onerror = () => reject(request.error as Error);
      request.onsuccess = () => {
        const database = request.result;
        const drop = () => (this.#opened = undefined);
        database.onversionchange = () => (drop(), database.close());
        database.onclose = drop;
        removeOld(database);
        resolve(database);
      };
    });
  }
}

function removeOld(database: IDBDatabase): void {
  const old = IDBKeyRange.upperBound(Date.now() - EXPIRY);
  const request = database.transaction(STATES, "readwrite").objectStore(STATES).index("savedAt").openCursor(old);
  request.onsuccess = () => {
    request.result?.delete();
    request.result?.continue();
  };
}
