/** The followed queries of one client: their results, as whole values and differences, over all its sockets. */

import { PlaitError } from "./errors.js";
import type { ErrorCode } from "./errors.js";
import type { SessionEvent } from "./events.js";
import { parse } from "./exact.js";
import { canonical, freeze, plain, share } from "./json.js";
import type { Document, Json } from "./json.js";
import { Listeners } from "./listeners.js";
import { tryApply } from "./patch.js";
import { soon } from "./platform.js";
import type { Op } from "./protocol.js";
import type { Session } from "./session.js";
import type { Carrier } from "./thread-part.js";

/** What is known of a query. */
export interface QueryState<Rows = any> {
  /** The last result; undefined before the first one. */
  readonly data: Rows | undefined;
  /** Why the query has failed, or has ended. `data` stays the last result. */
  readonly error: PlaitError | undefined;
  /** The version of the state at which `data` was read; undefined before the first result. */
  readonly at: number | undefined;
}

/** The state of a query without a result. */
export const NO_RESULT: QueryState = { data: undefined, error: undefined, at: undefined };

/** A part of the answer to a call that follows a query. Without `rows`, `ops` and `error`, the result is the known one. */
interface Chunk {
  readonly at: number;
  readonly tag: string;
  readonly rows?: Json;
  readonly ops?: readonly Op[];
  readonly error?: { readonly code: ErrorCode; readonly message: string };
}

/** A followed query with its arguments. */
export class Query {
  readonly method: string;
  readonly args: readonly Json[];
  state = NO_RESULT;
  readonly changed = new Listeners<[]>();
  /** The tag of `data`, empty before the first result. */
  tag = "";
  /** The call that follows it; undefined after its end. */
  ref: number | undefined;

  constructor(readonly key: string) {
    [this.method, this.args] = parse(key) as [string, Json[]];
  }

  /** Takes in a part of the answer; returns false, and changes nothing, if it does not fit the last result. */
  take({ at, tag, rows, ops = [], error }: Chunk): boolean {
    if (error) {
      this.fail(new PlaitError(error.code, error.message));
      return true;
    }
    const data = this.state.data as Document;
    const next = rows === undefined ? tryApply(data, ops) : rows;
    if (next === undefined) return false;
    this.tag = tag;
    this.tell({ data: freeze(share(data, next)), error: undefined, at });
    return true;
  }

  fail(error: PlaitError): void {
    this.tell({ ...this.state, error });
  }

  tell(state: QueryState): void {
    this.state = state;
    this.changed.tell();
  }
}

/** Calls the followed queries, again after each lost connection. */
export class Queries {
  readonly #carrier: Carrier;
  readonly #session: Session;
  // By their keys, in the order in which they were followed.
  readonly #followed = new Map<string, Query>();

  constructor(carrier: Carrier) {
    this.#carrier = carrier;
    const session = (this.#session = carrier.session as Session);
    // All who hold the session take the events, and stop it, by these methods.
    const { takeEvents, stop } = session;
    session.takeEvents = () => {
      const events = takeEvents.call(session);
      events.forEach((event) => this.#handle(event));
      return events;
    };
    session.stop = (error) => {
      stop.call(session, error);
      for (const query of this.all) if (query.ref !== undefined) this.#end(query, error);
    };
  }

  /** The followed queries, in the order in which they were followed. */
  get all(): readonly Query[] {
    return [...this.#followed.values()];
  }

  /** Returns a followed query. */
  find(key: string): Query | undefined {
    return this.#followed.get(key);
  }

  /** Follows a query, unless it is followed. */
  follow(key: string): Query {
    const known = this.#followed.get(key);
    if (known) return known;
    const query = new Query(key);
    this.#followed.set(key, query);
    if (this.#carrier.status === "closed") query.fail(this.#carrier.closedError);
    else this.#call(query);
    this.#carrier.pump();
    return query;
  }

  /** Stops following a query, and forgets it. */
  unfollow(query: Query): void {
    this.#followed.delete(query.key);
    this.#cancel(query);
    this.#carrier.pump();
  }

  #call(query: Query): void {
    query.ref = this.#session.call(query.method, query.args, {}, { have: query.tag });
  }

  #cancel(query: Query): void {
    if (query.ref !== undefined) this.#session.cancel(query.ref);
    query.ref = undefined;
  }

  #end(query: Query, error: PlaitError): void {
    query.ref = undefined;
    query.fail(error);
  }

  #handle(event: SessionEvent): void {
    if (event.type !== "result" && event.type !== "failed") return;
    const query = this.all.find(({ ref }) => ref === event.ref);
    if (!query) return;
    if (event.type === "failed") {
      if (event.error.code === "disconnected") this.#call(query);
      else this.#end(query, event.error);
    } else if (event.done) this.#end(query, new PlaitError("method_not_found", `${query.method} is no query`));
    else this.#take(query, event.value as unknown as Chunk);
  }

  #take(query: Query, chunk: Chunk): void {
    const { fold } = this.#session.queue;
    // Nothing else tells the version to a client without the state.
    if (fold.at && fold.at[1] < chunk.at && fold.have === undefined) fold.at = [fold.at[0], chunk.at];
    if (query.take(chunk)) return;
    this.#cancel(query);
    query.tag = "";
    this.#call(query);
    // The events are being taken by a pump, which has sent its frames.
    soon(() => this.#carrier.pump());
  }
}

/** Returns the key of a query: the same for the same arguments. Throws a TypeError for arguments that JSON cannot hold. */
export function keyOf(method: string, args: readonly unknown[]): string {
  return canonical(plain([method, args]));
}
