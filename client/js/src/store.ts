/** A value of a client as a store: in the contract of Svelte's stores, which Solid's `from` and others take, too. */

import type { ThreadClient, Unsubscribe } from "./client.js";
import type { DeepReadonly } from "./json.js";

/** A value that changes. */
export interface Store<Value> {
  /** Calls `run` with the value at once, and with each other one. */
  subscribe(run: (value: Value) => void): Unsubscribe;
}

/**
 * The shown state of a thread as a store, or the result of `selector` for the state and the client; it has changed if it
 * differs by `isEqual`.
 */
export function store<State, Missing extends undefined>(
  thread: ThreadClient<State, any, any, Missing>,
): Store<DeepReadonly<State> | Missing>;
export function store<State, Rpcs, Events, Missing extends undefined, Selected>(
  thread: ThreadClient<State, Rpcs, Events, Missing>,
  selector: (state: DeepReadonly<State> | Missing, thread: ThreadClient<State, Rpcs, Events, Missing>) => Selected,
  isEqual?: (a: Selected, b: Selected) => boolean,
): Store<Selected>;
export function store(
  thread: ThreadClient<any, any, any, any>,
  selector: (state: any, thread: ThreadClient<any, any, any, any>) => unknown = (state: unknown) => state,
  isEqual: (a: any, b: any) => boolean = Object.is,
): Store<unknown> {
  const read = () => selector(thread.state, thread);
  return {
    subscribe(run) {
      let last = read();
      const unsubscribe = thread.subscribe(() => {
        const next = read();
        if (isEqual(last, next)) return;
        last = next;
        run(next);
      });
      run(last);
      return unsubscribe;
    },
  };
}
