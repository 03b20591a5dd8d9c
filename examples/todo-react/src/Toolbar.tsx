/** What is shown of the list, and what is done to all of it. */

import type { PlaitError } from "plait-client";
import { useRpc, useThreadState, useThreadStatus } from "plait-client/react";
import { useEffect, useEffectEvent } from "react";

import { Icon } from "./Icon.tsx";
import { reason } from "./list.ts";
import type { Filter, TodoList } from "./list.ts";
import type { Notify } from "./notices.tsx";

interface ToolbarProps {
  list: TodoList;
  filter: Filter;
  onFilter: (filter: Filter) => void;
  onNotify: Notify;
}

const FILTERS: Record<Filter, string> = { all: "All", open: "Open", done: "Done" };

export function Toolbar({ list, filter, onFilter, onNotify }: ToolbarProps) {
  const isOnline = useThreadStatus(list) === "online";
  const hasDone = useThreadState(list, (state) => Object.values(state?.todos ?? {}).some((todo) => todo.done));
  const undo = useRpc(list, "undo");
  const clearDone = useRpc(list, "clear_done");
  const fail = (error: PlaitError) => onNotify({ text: reason(error), isError: true });
  const undoLast = () =>
    void undo.call().then((isUndone) => isUndone || onNotify({ text: "There is nothing of yours to undo" }), fail);
  const onKey = useEffectEvent((event: KeyboardEvent) => {
    const isText = event.target instanceof HTMLElement && event.target.matches("textarea, input:not([type=checkbox])");
    if (isText || event.key !== "z" || event.shiftKey || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    if (isOnline) undoLast();
  });
  useEffect(() => {
    const listener = (event: KeyboardEvent) => onKey(event);
    addEventListener("keydown", listener);
    return () => removeEventListener("keydown", listener);
  }, []);

  return (
    <footer className="toolbar">
      <div className="filters" role="group" aria-label="Show">
        {Object.entries(FILTERS).map(([key, label]) => (
          <button key={key} aria-pressed={filter === key} onClick={() => onFilter(key as Filter)}>
            {label}
          </button>
        ))}
      </div>
      <div className="actions">
        <button disabled={!isOnline || undo.pending} onClick={undoLast}>
          <Icon name="undo" /> Undo
        </button>
        <button disabled={!isOnline || !hasDone || clearDone.pending} onClick={() => void clearDone.call().catch(fail)}>
          Clear done
        </button>
      </div>
    </footer>
  );
}
