/** A room of a React page: it opens a thread, shows something else until the state has come, and gives it to hooks. */

import { Suspense, createContext, createElement, useContext, useMemo, useSyncExternalStore } from "react";
import type { ReactNode } from "react";

import { PlaitError } from "./errors.js";
import type { AnyClient } from "./hooks.js";
import type { DeepReadonly } from "./json.js";
import type { KindName, RoomOf, StateOf } from "./kinds.js";
import { useThread } from "./react-thread.js";
import type { UseThreadOptions } from "./react-thread.js";

/** The options of a thread but `state`, as a room has one, and what the room shows. */
export interface RoomProps<Kind extends string = string> extends Omit<
  UseThreadOptions<StateOf<Kind>>,
  "kind" | "name" | "state" | "initialState"
> {
  kind: Kind;
  /** Null while it is not known. */
  name: string | null;
  initialState?: DeepReadonly<StateOf<Kind>> | undefined;
  /** Shown while there is no name or no state, and by a server that has no `initialState`. */
  fallback?: ReactNode;
  children?: ReactNode;
}

// By kind; the nearest room is the one of "".
const Rooms = createContext<ReadonlyMap<string, AnyClient>>(new Map());

/** Opens a thread for its children, which get it by `useRoom`. With another kind or name, others are mounted. */
export function Room<Kind extends string>(props: RoomProps<Kind>): ReactNode {
  const { kind, name, initialState, fallback = null } = props;
  // While a page takes over what a server has rendered, it renders the same.
  const isServer = useSyncExternalStore(
    () => () => undefined,
    () => false,
    () => true,
  );
  if (name === null || (isServer && initialState === undefined)) return fallback;
  return createElement(OpenRoom, { ...(props as RoomProps), name, fallback, key: `${kind}/${name}` });
}

function OpenRoom({ children, fallback, ...options }: RoomProps & { name: string }): ReactNode {
  const { kind } = options;
  const thread = useThread(options);
  const outer = useContext(Rooms);
  const value = useMemo(() => new Map([...outer, ["", thread], [kind, thread]]), [outer, thread, kind]);
  return createElement(Rooms.Provider, { value }, createElement(Suspense, { fallback }, children));
}

/**
 * The thread of the nearest `Room`, or of the nearest one of a kind. The component is suspended until there is a state,
 * and not again: what was shown stays while offline and after the thread was closed. If it is closed before that, the
 * error is thrown. Throws a TypeError outside of a `Room`.
 */
export function useRoom<Kind extends KindName = never>(kind?: Kind): RoomOf<[Kind] extends [never] ? string : Kind>;
export function useRoom(kind = ""): AnyClient {
  const thread = useContext(Rooms).get(kind);
  if (!thread) throw new TypeError(`useRoom("${kind}") needs a <Room> around it`);
  const { state, version } = thread;
  if (state === undefined && version === undefined) {
    if (thread.status === "closed") throw thread.error ?? new PlaitError("closed", "the client is closed");
    // A storage may have a state before the first join. A client that no component holds connects for `ready`.
    throw Promise.race([thread.ready, thread.waitFor(() => true)]);
  }
  return thread;
}
