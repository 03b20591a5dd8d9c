/** The React hook that follows a query. */

import { useCallback, useSyncExternalStore } from "react";

import type { ThreadClient } from "./client.js";
import { PlaitError } from "./errors.js";
import type { AnyClient } from "./hooks.js";
import { queriesOf } from "./queries-part.js";
import { NO_RESULT, keyOf } from "./queries.js";
import type { QueryState } from "./queries.js";
import type { QueryArgs, QueryName, RowsOf } from "./rpc.js";

/** A query by its name, and whether the component is suspended until there is a result. */
export interface QueryOptions<Name extends string = string> {
  query: Name;
  suspense?: boolean | undefined;
}

/**
 * The result of a query, with its error and version; other arguments never show the result of these. The client needs
 * no option for it. With `suspense`, the component is suspended until there is a result; an error before that is thrown.
 */
export function useQuery<State, Rpcs, Name extends QueryName<Rpcs>>(
  thread: ThreadClient<State, Rpcs, any, any>,
  query: QueryOptions<Name> & { suspense: true },
  ...args: QueryArgs<Rpcs, Name>
): QueryState<RowsOf<Rpcs, Name>> & { readonly data: RowsOf<Rpcs, Name> };
export function useQuery<State, Rpcs, Name extends QueryName<Rpcs>>(
  thread: ThreadClient<State, Rpcs, any, any>,
  query: Name | QueryOptions<Name>,
  ...args: QueryArgs<Rpcs, Name>
): QueryState<RowsOf<Rpcs, Name>>;
export function useQuery(thread: AnyClient, query: string | QueryOptions, ...args: unknown[]): QueryState {
  const { query: name, suspense } = typeof query === "string" ? { query, suspense: false } : query;
  const [live, key] = [queriesOf(thread), keyOf(name, args)];
  const state = useSyncExternalStore(
    useCallback((fn: () => void) => live.subscribe(key, fn), [live, key]),
    () => live.read(key),
    () => {
      // Nothing is kept for the next attempt at rendering on a server.
      if (suspense) throw new PlaitError("disconnected", "a server follows no query");
      return NO_RESULT;
    },
  );
  if (!suspense || state.data !== undefined) return state;
  if (state.error) throw state.error;
  // A shared client without a mounted component connects when it is asked for this.
  thread.ready.catch(() => undefined);
  throw live.wait(key);
}
