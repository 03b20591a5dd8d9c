/** The building blocks of the React hooks: values of a client, the client of a component, and its listeners. */

import { useEffect, useLayoutEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";

import type { ThreadClient } from "./client.js";
import type { ThreadOptions } from "./options.js";
import type { ClientKey, SharedClients } from "./shared.js";

/** After this many renders in a row with other options, though nothing else has changed, the options are a mistake. */
const PROBES = 3;

// Effects before the page is painted; React 18 warns of layout effects on a server.
export const useCommit = typeof window === "undefined" ? useEffect : useLayoutEffect;

/** Returns a ref to the value of the last render. */
export function useLatest<Value>(value: Value): { readonly current: Value } {
  const latest = useRef(value);
  useCommit(() => {
    latest.current = value;
  });
  return latest;
}

// Values of a client

/** A client of any thread, whether or not its state has come. */
export type AnyClient = ThreadClient<any, any, any, any>;

/** A value of a client; on a server, `onServer`. */
export function useValue<Value>(thread: AnyClient, read: () => Value, onServer: Value): Value {
  return useSyncExternalStore(thread.subscribe, read, () => onServer);
}

/** The result of `selector` for a value of a client; the component renders again when that differs by `isEqual`. */
export function useSelected<Value, Selected>(
  thread: AnyClient,
  read: () => Value,
  readOnServer: () => Value,
  selector: (value: Value) => Selected,
  isEqual: (a: Selected, b: Selected) => boolean,
): Selected {
  const last = useRef<{ thread: unknown; value: Selected } | undefined>(undefined);
  const select = useMemo(() => {
    let seen: { read: Value; value: Selected } | undefined;
    return (read: Value) => {
      if (seen && Object.is(seen.read, read)) return seen.value;
      const value = selector(read);
      // A value of another thread or user is never reused.
      const before = seen ?? (last.current?.thread === thread ? last.current : undefined);
      seen = { read, value: before && isEqual(before.value, value) ? before.value : value };
      return seen.value;
    };
  }, [thread, selector, isEqual]);
  const value = useSyncExternalStore(
    thread.subscribe,
    () => select(read()),
    () => select(readOnServer()),
  );
  useEffect(() => {
    last.current = { thread, value };
  }, [thread, value]);
  return value;
}

export function itself(value: unknown): unknown {
  return value;
}

// The client of a component

interface Picked {
  readonly key: ClientKey;
  readonly client: ThreadClient;
}

/**
 * Returns the client of the options, kept in state, and a function that picks one again. Options that name another
 * thread or user give another client at once; if `client` or `storage` is another at each render, the first is kept.
 */
export function usePickedClient(clients: SharedClients, options: ThreadOptions<any>): [ThreadClient, () => void] {
  const key = clients.keyOf(options);
  const pick = () => ({ key, client: clients.get(options, key) });
  const [picked, setPicked] = useState<Picked>(pick);
  // Rendering again shows whether the options stay the same; React does so at once for a state that is set while
  // rendering. The ref holds the options seen on the way, and means nothing after that.
  const probe = useRef({ own: "", count: 0, hasWarned: false }).current;
  let { client } = picked;
  if (picked.key.thread === key.thread && picked.key.own === key.own) probe.count = 0;
  else if (picked.key.thread !== key.thread || (probe.count > 0 && probe.own === key.own)) {
    const next = pick();
    ({ client } = next);
    probe.count = 0;
    setPicked(next);
  } else if (probe.count < PROBES) {
    probe.own = key.own;
    probe.count++;
    setPicked({ ...picked });
  } else {
    probe.count = 0;
    if (!probe.hasWarned) warn();
    probe.hasWarned = true;
  }
  clients.addParts(client, options);
  return [client, () => setPicked(pick())];
}

declare const process: { env: { NODE_ENV?: string } };

/** Warns in development. */
function warn(): void {
  try {
    // Bundlers replace this by a text.
    if (process.env.NODE_ENV === "production") return;
  } catch {
    // A page has no process.
  }
  console.warn("useThread: client or storage is another at each render: create it outside.");
}

// Handlers

/** Functions that are called while a component is mounted; they may be others at each render. */
export interface ThreadHandlers {
  onMessage?: (data: any) => void;
  onRefused?: Parameters<ThreadClient["onRefused"]>[0];
  onChange?: Parameters<ThreadClient["onChange"]>[0];
}

export function useHandlers(client: ThreadClient, handlers: ThreadHandlers): void {
  const latest = useLatest(handlers);
  const handlesRefusals = handlers.onRefused !== undefined;
  useEffect(() => {
    const unsubscribes = [
      client.onMessage((data) => latest.current.onMessage?.(data)),
      client.onChange((change) => latest.current.onChange?.(change)),
    ];
    return () => unsubscribes.forEach((unsubscribe) => unsubscribe());
  }, [client, latest]);
  useEffect(() => {
    // Without a handler here, refusals go to `ThreadClient.onRefused`.
    if (handlesRefusals) return client.onRefused((refusal) => latest.current.onRefused?.(refusal));
    return undefined;
  }, [client, latest, handlesRefusals]);
}
