/** The filter of the list, and the actions on the whole list. */

import { useThreadState, useThreadStatus } from "plait-client/react";
import { useEffect, useEffectEvent } from "react";

import { Icon } from "./Icon.tsx";
import type { Filter, TodoList } from "./list.ts";
import type { Undo } from "./undo.ts";

interface ToolbarProps {
  list: TodoList;
  filter: Filter;
  onFilter: (filter: Filter) => void;
  undo: Undo;
}

const FILTERS: Record<Filter, string> = { all: "All", open: "Open", done: "Done" };

export function Toolbar({ list, filter, onFilter, undo }: ToolbarProps) {
  const status = useThreadStatus(list);
  const isOnline = status === "online";
  const hasDone = useThreadState(list, (state) => Object.values(state?.todos ?? {}).some((todo) => todo.done));
  const onKey = useEffectEvent((event: KeyboardEvent) => {
    const isText = event.target instanceof HTMLElement && event.target.matches("textarea, input:not([type=checkbox])");
    if (isText || event.key !== "z" || event.shiftKey || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    if (isOnline) undo.undo();
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
        <button disabled={!isOnline || undo.isBusy} onClick={undo.undo}>
          <Icon name="undo" /> Undo
        </button>
        <button disabled={!isOnline || !hasDone || undo.isBusy} onClick={undo.clearDone}>
          Clear done
        </button>
      </div>
      {status === "offline" && (
        <p className="offline-note">
          You can go on: what you change is kept here and sent later. Undo and Clear done need the server.
        </p>
      )}
    </footer>
  );
}
