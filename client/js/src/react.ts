/** React hooks over a ThreadClient; rendering on a server opens no socket. */

import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";

import type { ThreadClient } from "./client.js";
import { PlaitError } from "./errors.js";
import type { DeepReadonly } from "./frozen.js";
import { usePicked } from "./holding.js";
import type { Status } from "./link.js";
import type { ThreadOptions } from "./options.js";
import type { PresenceRecord } from "./presence.js";
import type { AnyRpcs, ArgsOf, ResultOf } from "./rpc.js";
import { SharedClients } from "./shared.js";
import type { AnyEvents } from "./subscribers.js";

const NOBODY: PresenceRecord = {};

// One for all components of a page: they are to share sockets.
const clients = new SharedClients();

// At once with what is on the page; React 18 warns of layout effects on a server, where there are none.
const useCommit = typeof window === "undefined" ? useEffect : useLayoutEffect;

/** What happens while a component is there; may be another function at each render. */
export interface ThreadHandlers {
  onMessage?: (data: any) => void;
  onRefused?: Parameters<ThreadClient["onRefused"]>[0];
  onChange?: Parameters<ThreadClient["onChange"]>[0];
}

export type UseThreadOptions<State> = Omit<ThreadOptions<State>, "connect"> & ThreadHandlers;

/**
 * The client of a thread, connected while a component that uses it is mounted. Components that name the same thread with
 * a token of the same user share one; of their options, those of the first count, and the last token. It is another when
 * kind, name, host, url, client, storage or the user are, and for a component that comes when the one there was is closed
 * for good. Two texts are tokens of one user when they are JWTs that differ in their times.
 */
export function useThread<State = any, Rpcs = AnyRpcs, Events = AnyEvents>(
  options: UseThreadOptions<State>,
): ThreadClient<State, Rpcs, Events> {
  const [client, pickAgain] = usePicked(clients, options);
  const again = useLatest(pickAgain);
  // The token is asked of the options of the last render, so that a function in them need not stay the same.
  useCommit(() => clients.setToken(client, options.token));
  useEffect(() => {
    const release = clients.hold(client);
    // It was closed while this component was hidden, or another one is shared.
    if (!release) again.current();
    return release;
  }, [client, again]);
  useHandlers(client, useLatest(options), options.onRefused !== undefined);
  return client as unknown as ThreadClient<State, Rpcs, Events>;
}

/**
 * What a client's user sees, or the part of it that `selector` picks; the component renders again when that is another
 * by `isEqual`. Until there is a state it is the option `initialState`, or undefined.
 */
export function useThreadState<State>(thread: ThreadClient<State, any, any>): DeepReadonly<State> | undefined;
export function useThreadState<State, Selected>(
  thread: ThreadClient<State, any, any>,
  selector: (state: DeepReadonly<State> | undefined) => Selected,
  isEqual?: (a: Selected, b: Selected) => boolean,
): Selected;
export function useThreadState<State>(
  thread: ThreadClient<State, any, any>,
  selector: (state: DeepReadonly<State> | undefined) => unknown = itself,
  isEqual: (a: unknown, b: unknown) => boolean = Object.is,
): unknown {
  const last = useRef<{ thread: unknown; value: unknown } | undefined>(undefined);
  const select = useMemo(() => {
    let seen: { state: DeepReadonly<State> | undefined; value: unknown } | undefined;
    return (state: DeepReadonly<State> | undefined) => {
      if (seen && Object.is(seen.state, state)) return seen.value;
      const value = selector(state);
      // What another thread or user was shown is not taken for equal.
      const before = seen ?? (last.current?.thread === thread ? last.current : undefined);
      seen = { state, value: before && isEqual(before.value, value) ? before.value : value };
      return seen.value;
    };
  }, [thread, selector, isEqual]);
  const value = useSyncExternalStore(
    useSubscribe(thread),
    () => select(thread.state),
    () => select(thread.initialState),
  );
  useEffect(() => {
    last.current = { thread, value };
  }, [thread, value]);
  return value;
}

/** What is to be seen of each connection, by its id. */
export function usePresence(thread: ThreadClient<any, any, any>): PresenceRecord {
  return useSyncExternalStore(
    useSubscribe(thread),
    () => thread.presence,
    () => NOBODY,
  );
}

/** Whether the thread is joined. */
export function useThreadStatus(thread: ThreadClient<any, any, any>): Status {
  return useSyncExternalStore(
    useSubscribe(thread),
    () => thread.status,
    () => "connecting",
  );
}

/** Tells `fn`, which may be another function at each render, what the thread emits under a name. */
export function useThreadEvent<Events, Name extends keyof Events & string>(
  thread: ThreadClient<any, any, Events>,
  name: Name,
  fn: (data: Events[Name]) => void,
): void {
  const latest = useLatest(fn);
  useEffect(() => thread.onEvent(name, (data) => latest.current(data)), [thread, name, latest]);
}

export interface RpcState<Args extends unknown[], Data> {
  /** Calls the method; stays the same function, and its promise needs nobody to catch it. */
  call: (...args: Args) => Promise<Data>;
  /** Whether a call is under way. */
  pending: boolean;
  /** What the last call that has ended was refused with. */
  error: PlaitError | undefined;
  /** What the last call that did not fail returned. */
  data: Data | undefined;
}

/** One method, and how its last call goes; of several under way, the last one begun counts. */
export function useRpc<State, Rpcs, Name extends keyof Rpcs & string>(
  thread: ThreadClient<State, Rpcs, any>,
  method: Name,
): RpcState<ArgsOf<Rpcs, Name>, ResultOf<Rpcs, Name>> {
  type Data = ResultOf<Rpcs, Name>;
  // It is that of one method; while another is named, it is not shown.
  const [state, setState] = useState({ ...IDLE, thread, method } as Omit<RpcState<never, Data>, "call"> & {
    thread: typeof thread;
    method: Name;
  });
  const last = useRef(0);
  const call = useCallback(
    (...args: ArgsOf<Rpcs, Name>) => {
      const number = ++last.current;
      const end = (ended: Partial<typeof state>) =>
        number === last.current && setState((before) => ({ ...before, pending: false, error: undefined, ...ended }));
      setState((before) => {
        const isSame = before.thread === thread && before.method === method;
        return { ...(isSame ? before : IDLE), thread, method, pending: true };
      });
      const result = thread.call(method, ...args);
      result.then(
        (data) => end({ data }),
        (error: unknown) =>
          end({ error: error instanceof PlaitError ? error : new PlaitError("error", String(error)) }),
      );
      return result;
    },
    [thread, method],
  );
  const { pending, error, data } = state.thread === thread && state.method === method ? state : IDLE;
  return { pending, error, data, call };
}

const IDLE = { pending: false, error: undefined, data: undefined };

function useSubscribe(thread: ThreadClient<any, any, any>): (fn: () => void) => () => void {
  return useCallback((fn: () => void) => thread.subscribe(fn), [thread]);
}

function useHandlers(client: ThreadClient, latest: { readonly current: ThreadHandlers }, hears: boolean): void {
  useEffect(() => {
    const unsubscribes = [
      client.onMessage((data) => latest.current.onMessage?.(data)),
      client.onChange((change) => latest.current.onChange?.(change)),
    ];
    return () => unsubscribes.forEach((unsubscribe) => unsubscribe());
  }, [client, latest]);
  useEffect(() => {
    // Refusals that nobody listens to are told to the app.
    if (hears) return client.onRefused((refusal) => latest.current.onRefused?.(refusal));
    return undefined;
  }, [client, latest, hears]);
}

function useLatest<Value>(value: Value): { readonly current: Value } {
  const latest = useRef(value);
  useCommit(() => {
    latest.current = value;
  });
  return latest;
}

function itself(state: unknown): unknown {
  return state;
}
