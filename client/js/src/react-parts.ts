/** The React hooks for the parts of a thread: its texts, messages and tasks, and for lists of threads. */

import { useCallback, useEffect, useRef, useState, useSyncExternalStore } from "react";

import { bindText } from "./bind-text.js";
import type { ThreadMessage } from "./conversation.js";
import type { PlaitError } from "./errors.js";
import type { TextElement } from "./fields.js";
import { useLatest } from "./hooks.js";
import type { AnyClient } from "./hooks.js";
import type { Document } from "./json.js";
import { UNKNOWN, watchThreads } from "./listing.js";
import type { ListOptions, ThreadList } from "./listing.js";
import { parse, textAt } from "./patch.js";
import type { PendingApproval, TaskRun } from "./protocol.js";
import { useThreadState } from "./react-state.js";
import type { ThreadMessages } from "./thread-messages.js";

const NO_MESSAGES: readonly ThreadMessage[] = [];
const NO_APPROVALS: readonly PendingApproval[] = [];

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
export function useText(thread: AnyClient, pointer: string): BoundText {
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
export function useMessages(thread: AnyClient, part?: string): MessagesState {
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
export function useApprovals(thread: AnyClient, part?: string): readonly PendingApproval[] {
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
export function useTask(thread: AnyClient, id?: string, part?: string): TaskRun | undefined {
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
