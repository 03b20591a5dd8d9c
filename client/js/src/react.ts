/** React hooks for a ThreadClient; rendering on a server opens no socket. */

import { useCallback, useEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";

import { bindText } from "./bind-text.js";
import type { ThreadClient } from "./client.js";
import type { ThreadMessage } from "./conversation.js";
import { PlaitError } from "./errors.js";
import type { TextElement } from "./fields.js";
import { useCommit, useHandlers, useLatest, usePickedClient, useSubscribe } from "./hooks.js";
import type { ThreadHandlers } from "./hooks.js";
import type { DeepReadonly, Document } from "./json.js";
import { UNKNOWN, watchThreads } from "./listing.js";
import type { ListOptions, ThreadList } from "./listing.js";
import type { AnyEvents } from "./listeners.js";
import type { Status } from "./link.js";
import type { ThreadOptions } from "./options.js";
import { parse, textAt } from "./patch.js";
import type { PresenceRecord } from "./presence.js";
import type { PendingApproval, TaskRun } from "./protocol.js";
import type { AnyRpcs, ArgsOf, ResultOf } from "./rpc.js";
import { SharedClients } from "./shared.js";
import type { ThreadMessages } from "./thread-messages.js";

export type { ThreadHandlers } from "./hooks.js";
export type { QueryState } from "./queries.js";
export { useQuery } from "./use-query.js";
export type { QueryOptions } from "./use-query.js";

const NOBODY: PresenceRecord = {};
const NO_MESSAGES: readonly ThreadMessage[] = [];
const NO_APPROVALS: readonly PendingApproval[] = [];

// The page has one, so that its components share sockets.
const clients = new SharedClients();

export type UseThreadOptions<State> = Omit<ThreadOptions<State>, "connect"> & ThreadHandlers;

/**
 * The client of a thread, connected while a component that uses it is mounted. Components that name the same thread
 * with a token of the same user share one client; it has the options of the first of them, with the parts that a later
 * one adds (`text`, `undo`, `compare`, `messages`, `tasks`, `queries`, `optimistic`), and the token of the last render. Another kind, name,
 * host, url, client, storage, `state` or user gives another client, and so does mounting after the shared one was closed. Two
 * tokens are of the same user if they are equal, or JWTs that differ in their times only.
 */
export function useThread<State = unknown, Rpcs = AnyRpcs, Events = AnyEvents>(
  options: UseThreadOptions<State>,
): ThreadClient<State, Rpcs, Events> {
  const [client, pickAgain] = usePickedClient(clients, options);
  const again = useLatest(pickAgain);
  // The client reads the token of the last render, so that a function in the options need not stay the same.
  useCommit(() => clients.setToken(client, options.token));
  useEffect(() => {
    const release = clients.hold(client);
    // The client was closed, or replaced by another shared one, while this component was hidden.
    if (!release) again.current();
    return release;
  }, [client, again]);
  useHandlers(client, options);
  return client as unknown as ThreadClient<State, Rpcs, Events>;
}

/**
 * The shown state, or the result of `selector` for it; the component renders again when that differs by `isEqual`.
 * Until the thread has sent its state, it is the option `initialState`, or undefined.
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
      // A value of another thread or user is never reused.
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

/** The presence of each connection, by its id. */
export function usePresence(thread: ThreadClient<any, any, any>): PresenceRecord {
  return useSyncExternalStore(
    useSubscribe(thread),
    () => thread.presence,
    () => NOBODY,
  );
}

/** The status of the connection. */
export function useThreadStatus(thread: ThreadClient<any, any, any>): Status {
  return useSyncExternalStore(
    useSubscribe(thread),
    () => thread.status,
    () => "connecting",
  );
}

/** Calls `fn` with the data of each event `name` of the thread; `fn` may be another function at each render. */
export function useThreadEvent<Events, Name extends keyof Events & string>(
  thread: ThreadClient<any, any, Events>,
  name: Name,
  fn: (data: Events[Name]) => void,
): void {
  const latest = useLatest(fn);
  useEffect(() => thread.onEvent(name, (data) => latest.current(data)), [thread, name, latest]);
}

export interface BoundText {
  /** For the element in which the text is shown and typed: a textarea, an input, or one with `contenteditable`. */
  ref: (element: TextElement | null) => void;
  /** The shown text; undefined if there is none. */
  value: string | undefined;
}

/**
 * A text of the thread, for an element that is bound to it by `ref`, as with `bindText`. The element has no `value` of
 * its own: typing goes to the thread, and others' typing comes in.
 */
export function useText(thread: ThreadClient<any, any, any>, pointer: string): BoundText {
  const value = useThreadState(thread, (state: unknown) => textAt(state as Document, parse(pointer)));
  const bound = useRef<{ close: () => void } | undefined>(undefined);
  const ref = useCallback(
    (element: TextElement | null) => {
      bound.current?.close();
      bound.current = element ? bindText(element, thread, pointer) : undefined;
    },
    [thread, pointer],
  );
  return { ref, value };
}

export interface MessagesState {
  /** The messages, oldest first, with the pending messages and those that are being sent here. */
  items: readonly ThreadMessage[];
  /** Whether the first page has come, whether there are older messages, and whether some are being read. */
  isReady: boolean;
  hasMore: boolean;
  isLoading: boolean;
  /** Why the messages cannot be opened, or older ones cannot be read. */
  error: PlaitError | undefined;
  /** The messages themselves, for `send`, `older` and `onRefused`. */
  messages: ThreadMessages;
}

/**
 * The messages of the thread, or those that its class declares by the name `part`. They are opened by the first component
 * that uses them. Throws a TypeError without the option `messages`.
 */
export function useMessages(thread: ThreadClient<any, any, any>, part?: string): MessagesState {
  const messages = part === undefined ? thread.messages : thread.messages.of(part);
  const items = useSyncExternalStore(
    messages.subscribe,
    () => messages.items,
    () => NO_MESSAGES,
  );
  const read = () => `${messages.isReady} ${messages.hasMore} ${messages.isLoading} ${messages.error?.code}`;
  useSyncExternalStore(messages.subscribe, read, read);
  const { isReady, hasMore, isLoading, error } = messages;
  return { items, isReady, hasMore, isLoading, error, messages };
}

/**
 * The calls of tools that wait for a person, in the thread's messages or those of the part `part`. Throws a TypeError
 * without the option `messages`.
 */
export function useApprovals(thread: ThreadClient<any, any, any>, part?: string): readonly PendingApproval[] {
  const messages = part === undefined ? thread.messages : thread.messages.of(part);
  return useSyncExternalStore(
    messages.subscribe,
    () => messages.approvals,
    () => NO_APPROVALS,
  );
}

/**
 * A run of one of the thread's tasks, or of those that its class declares by the name `part`; undefined while the run
 * is not known, and without an `id`. Throws a TypeError without the option `tasks`.
 */
export function useTask(thread: ThreadClient<any, any, any>, id?: string, part?: string): TaskRun | undefined {
  const tasks = part === undefined ? thread.tasks : thread.tasks.of(part);
  const find = () => (id === undefined ? undefined : tasks.find(id));
  const run = useSyncExternalStore(tasks.subscribe, find, () => undefined);
  const isReady = useSyncExternalStore(
    tasks.subscribe,
    () => tasks.isReady,
    () => false,
  );
  const isMissing = id !== undefined && isReady && run === undefined;
  useEffect(() => {
    // Such a run ended long ago; other calls report the errors, too.
    if (isMissing) tasks.get(id).catch(() => undefined);
  }, [tasks, id, isMissing]);
  return run;
}

export type UseThreadsOptions = Omit<ListOptions, "kind">;

/**
 * The threads of a kind that changed last, with the people who are in them; the list is kept up to date while the
 * component is mounted. A function as `token` may be another one at each render.
 */
export function useThreads<Card = unknown>(kind: string, options: UseThreadsOptions = {}): ThreadList<Card> {
  const { host, secure, limit, mine, token } = options;
  const url = options.url === undefined ? undefined : String(options.url);
  const latest = useLatest(token);
  const key = JSON.stringify([kind, host, secure, url, limit, mine, typeof token === "function" || token]);
  const [shown, setShown] = useState<{ key: string; list: ThreadList<Card> }>({ key, list: UNKNOWN });
  useEffect(() => {
    const fetchToken = () => (typeof latest.current === "function" ? latest.current() : latest.current);
    const place = { kind, host, secure, url, limit, mine, token: fetchToken };
    return watchThreads<Card>(place, (list) => setShown({ key, list }));
    // The key contains everything on which the list depends.
  }, [key]);
  // The list of another kind or user is never shown.
  return shown.key === key ? shown.list : UNKNOWN;
}

export interface RpcState<Args extends unknown[], Data> {
  /** Calls the method. It stays the same function, and its promise need not be caught. */
  call: (...args: Args) => Promise<Data>;
  /** Whether a call is under way. */
  pending: boolean;
  /** The error of the last call that ended, if it failed. */
  error: PlaitError | undefined;
  /** The result of the last call that did not fail. */
  data: Data | undefined;
}

export interface RpcOptions<State, Args extends unknown[]> {
  /**
   * Changes a draft of the state as a call with these arguments will change the state, so that it is shown at once. The
   * client needs the option `optimistic`.
   */
  optimistic?: ((draft: State, ...args: Args) => unknown) | undefined;
}

/** A method, and the state of its last call; if several are under way, the one that began last counts. */
export function useRpc<State, Rpcs, Name extends keyof Rpcs & string>(
  thread: ThreadClient<State, Rpcs, any>,
  method: Name,
  options: RpcOptions<State, ArgsOf<Rpcs, Name>> = {},
): RpcState<ArgsOf<Rpcs, Name>, ResultOf<Rpcs, Name>> {
  type Data = ResultOf<Rpcs, Name>;
  // The state belongs to one method; it is not shown for another.
  const [state, setState] = useState({ ...IDLE, thread, method } as Omit<RpcState<never, Data>, "call"> & {
    thread: typeof thread;
    method: Name;
  });
  const last = useRef(0);
  const latest = useLatest(options.optimistic);
  const call = useCallback(
    (...args: ArgsOf<Rpcs, Name>) => {
      const number = ++last.current;
      const end = (ended: Partial<typeof state>) =>
        number === last.current && setState((before) => ({ ...before, pending: false, error: undefined, ...ended }));
      setState((before) => {
        const isSame = before.thread === thread && before.method === method;
        return { ...(isSame ? before : IDLE), thread, method, pending: true };
      });
      const recipe = latest.current;
      const optimistic = recipe && ((draft: State) => recipe(draft, ...args));
      const result = thread.callWith(method, { args, optimistic });
      result.then(
        (data) => end({ data }),
        (error: unknown) =>
          end({ error: error instanceof PlaitError ? error : new PlaitError("error", String(error)) }),
      );
      return result;
    },
    [thread, method, latest],
  );
  const { pending, error, data } = state.thread === thread && state.method === method ? state : IDLE;
  return { pending, error, data, call };
}

const IDLE = { pending: false, error: undefined, data: undefined };

function itself(state: unknown): unknown {
  return state;
}
