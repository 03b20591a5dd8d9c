/** Queries, as an option of a client: their results, for listeners. */

import { Deferred } from "./deferred.js";
import type { PlaitError } from "./errors.js";
import { soon } from "./platform.js";
import { NO_RESULT, Queries, keyOf } from "./queries.js";
import type { Query, QueryState } from "./queries.js";
import type { QueryArgs, QueryName, RowsOf } from "./rpc.js";
import type { Carrier } from "./thread-part.js";

/** The milliseconds that a query is followed for a component that waits for it. */
const PATIENCE = 60_000;
/** The milliseconds that an error stays for components that have waited; after them, the query is called again. */
const GRACE = 1_000;

/** The method of a client that the option `queries` brings. */
export interface QueryMethods<Rpcs> {
  /**
   * Follows a query: calls `fn` with its last result, as soon as there is one, and again when that has changed. After an
   * error the result stays, and is undefined if there was none. The result is frozen, and its unchanged parts stay the
   * same objects. Returns the function that ends this.
   */
  query<Name extends QueryName<Rpcs>>(
    name: Name,
    args: QueryArgs<Rpcs, Name>,
    fn: (data: RowsOf<Rpcs, Name> | undefined, error: PlaitError | undefined) => void,
  ): () => void;
}

/** Gives a client queries. */
export interface QueriesPart {
  newMethods(client: object, carrier: Carrier): QueryMethods<any>;
}

const known = new WeakMap<object, LiveQueries>();

export const queries: QueriesPart = {
  newMethods(client, carrier) {
    const live = known.get(client) ?? new LiveQueries(carrier);
    known.set(client, live);
    return { query: (name, args, fn) => live.listen(keyOf(name, args), fn) };
  },
};

/** Returns the queries of a client, which has the option or gets it now. */
export function queriesOf(client: { addParts(parts: { queries: QueriesPart }): void }): LiveQueries {
  if (!known.has(client)) client.addParts({ queries });
  return known.get(client) as LiveQueries;
}

/** Holds a query for a component that waits for its first result. */
interface Hold {
  /** Resolved by the first result or error. */
  readonly changed: Deferred<void>;
  readonly remove: () => void;
  timer: ReturnType<typeof setTimeout> | undefined;
}

/** The queries of one client, each followed while it has listeners or is held. */
export class LiveQueries {
  readonly #queries: Queries;
  readonly #held = new Map<Query, Hold>();

  constructor(carrier: Carrier) {
    this.#queries = new Queries(carrier);
  }

  read(key: string): QueryState {
    return this.#queries.find(key)?.state ?? NO_RESULT;
  }

  /** Calls `fn` whenever the state of a query has changed. Returns the function that ends this. */
  subscribe(key: string, fn: () => void): () => void {
    const query = this.#queries.follow(key);
    const remove = query.changed.add(fn);
    this.#release(query);
    return () => {
      remove();
      // A component that is mounted again at once finds the query.
      soon(() => this.#leave(query));
    };
  }

  /** Calls `fn` with the result and error of a query, soon and whenever one of them has changed. */
  listen(key: string, fn: (data: any, error: PlaitError | undefined) => void): () => void {
    let told: QueryState | undefined = NO_RESULT;
    const tell = () => {
      const state = this.read(key);
      if (!told || (state.data === told.data && state.error === told.error)) return;
      told = state;
      fn(state.data, state.error);
    };
    const unsubscribe = this.subscribe(key, tell);
    soon(tell);
    return () => {
      told = undefined;
      unsubscribe();
    };
  }

  /**
   * Returns a promise that is resolved when a query has a result or an error. The query is held for a while, until it
   * has a listener, because a component that waits has no effects.
   */
  wait(key: string): Promise<void> {
    const query = this.#queries.follow(key);
    let hold = this.#held.get(query);
    if (!hold) {
      const changed = new Deferred<void>();
      const remove = query.changed.add(() => {
        changed.resolve();
        if (query.state.data === undefined) this.#holdFor(GRACE, query);
      });
      hold = { changed, remove, timer: undefined };
      this.#held.set(query, hold);
    }
    const hasFailed = query.state.error !== undefined;
    if (hasFailed) hold.changed.resolve();
    this.#holdFor(hasFailed ? GRACE : PATIENCE, query);
    return hold.changed.promise;
  }

  #holdFor(wait: number, query: Query): void {
    const hold = this.#held.get(query) as Hold;
    clearTimeout(hold.timer);
    hold.timer = setTimeout(() => {
      this.#release(query);
      this.#leave(query);
    }, wait);
  }

  #release(query: Query): void {
    const hold = this.#held.get(query);
    clearTimeout(hold?.timer);
    hold?.remove();
    // A component that still waits asks again.
    hold?.changed.resolve();
    this.#held.delete(query);
  }

  /** Stops following a query without listeners. */
  #leave(query: Query): void {
    if (query.changed.isEmpty && this.#queries.find(query.key) === query) this.#queries.unfollow(query);
  }
}
