/** The React hooks for the values of a client: its state, its status, and what can be undone. */

import { useCallback } from "react";

import type { AnyClient } from "./hooks.js";
import { itself, useSelected, useValue } from "./hooks.js";
import type { ThreadClient } from "./client.js";
import type { DeepReadonly } from "./json.js";
import type { Status } from "./link.js";

/**
 * The shown state, or the result of `selector` for it; the component renders again when that differs by `isEqual`.
 * Until the thread has sent its state, it is the option `initialState`, or undefined; in a `Room` there is a state.
 */
export function useThreadState<State>(thread: ThreadClient<State, any, any, never>): DeepReadonly<State>;
export function useThreadState<State, Selected>(
  thread: ThreadClient<State, any, any, never>,
  selector: (state: DeepReadonly<State>) => Selected,
  isEqual?: (a: Selected, b: Selected) => boolean,
): Selected;
export function useThreadState<State>(thread: ThreadClient<State, any, any>): DeepReadonly<State> | undefined;
export function useThreadState<State, Selected>(
  thread: ThreadClient<State, any, any>,
  selector: (state: DeepReadonly<State> | undefined) => Selected,
  isEqual?: (a: Selected, b: Selected) => boolean,
): Selected;
export function useThreadState(
  thread: AnyClient,
  selector: (state: any) => unknown = itself,
  isEqual: (a: unknown, b: unknown) => boolean = Object.is,
): unknown {
  return useSelected(
    thread,
    () => thread.state,
    () => thread.initialState,
    selector,
    isEqual,
  );
}

/** The status of the connection. */
export function useStatus(thread: AnyClient): Status {
  return useValue(thread, () => thread.status, "connecting");
}

/** Another name of `useStatus`. */
export const useThreadStatus = useStatus;

/** How many changes of this client the server has neither applied nor refused. */
export function usePending(thread: AnyClient): number {
  return useValue(thread, () => thread.pending, 0);
}

/** Returns a function that undoes the last own change, or the last one at a pointer; it stays the same function. */
export function useUndo(thread: AnyClient, pointer?: string): () => void {
  return useCallback(() => void thread.undo(pointer), [thread, pointer]);
}

/** Returns a function that makes the last undone change again, or the last one at a pointer. */
export function useRedo(thread: AnyClient, pointer?: string): () => void {
  return useCallback(() => void thread.redo(pointer), [thread, pointer]);
}

/** Whether there is something to undo. */
export function useCanUndo(thread: AnyClient, pointer?: string): boolean {
  return useValue(thread, () => thread.canUndo(pointer), false);
}

/** Whether there is something to make again. */
export function useCanRedo(thread: AnyClient, pointer?: string): boolean {
  return useValue(thread, () => thread.canRedo(pointer), false);
}
