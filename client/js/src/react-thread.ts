/** The React hooks for a client of a thread, and for what comes from it. */

import { useEffect } from "react";

import type { ThreadClient } from "./client.js";
import type { PlaitError } from "./errors.js";
import { useCommit, useHandlers, useLatest, usePickedClient } from "./hooks.js";
import type { AnyClient, ThreadHandlers } from "./hooks.js";
import type { AnyEvents } from "./listeners.js";
import type { ThreadOptions } from "./options.js";
import type { AnyRpcs } from "./rpc.js";
import { SharedClients } from "./shared.js";

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

/** Calls `fn` with the data of each event `name` of the thread; `fn` may be another function at each render. */
export function useThreadEvent<Events, Name extends keyof Events & string>(
  thread: ThreadClient<any, any, Events, any>,
  name: Name,
  fn: (data: Events[Name]) => void,
): void {
  const latest = useLatest(fn);
  useEffect(() => thread.onEvent(name, (data) => latest.current(data)), [thread, name, latest]);
}

/**
 * Calls `fn` with the error of each change of this client that was refused, and with the reason why the client was
 * closed for good; `fn` may be another function at each render.
 */
export function useErrorListener(thread: AnyClient, fn: (error: PlaitError) => void): void {
  const latest = useLatest(fn);
  useEffect(() => {
    let told: PlaitError | undefined;
    const tell = (error: PlaitError | undefined) => {
      // The changes of a client that is closed are refused with its own error.
      if (error && error !== told) latest.current(error);
      told = error;
    };
    const unsubscribes = [
      thread.onRefused(({ error }) => tell(error)),
      thread.subscribe(() => thread.status === "closed" && tell(thread.error)),
    ];
    tell(thread.error);
    return () => unsubscribes.forEach((unsubscribe) => unsubscribe());
  }, [thread, latest]);
}
