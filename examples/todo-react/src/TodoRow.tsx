/** One todo. The row renders only when this todo or its editor changes. */

import { useThreadState } from "plait-client/react";
import { memo, useCallback, useState, useSyncExternalStore } from "react";
import type { KeyboardEvent } from "react";

import { drag } from "./drag.ts";
import { Icon } from "./Icon.tsx";
import { move, remove, rename, tick } from "./list.ts";
import type { TodoList } from "./list.ts";
import { hue } from "./people.ts";
import type { Person, Show } from "./people.ts";
import { TitleField } from "./TitleField.tsx";
import { useRenderCount } from "./useRenderCount.ts";

interface TodoRowProps {
  list: TodoList;
  id: string;
  editor: Person | undefined;
  onShow: Show;
  onStep: (row: HTMLElement, step: -1 | 1) => void;
}

export const TodoRow = memo(function TodoRow({ list, id, editor, onShow, onStep }: TodoRowProps) {
  const todo = useThreadState(list, (state) => state?.todos[id]);
  const isWaiting = useIsWaiting(list, id);
  const [isEditing, setEditing] = useState(false);
  const row = useRenderCount<HTMLLIElement>();
  if (!todo) return null;

  const stop = (title?: string) => {
    setEditing(false);
    if (title !== undefined) rename(list, id, title);
  };
  const step = (event: KeyboardEvent) => {
    if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
    event.preventDefault();
    onStep(row.current!, event.key === "ArrowUp" ? -1 : 1);
  };
  return (
    <li className="row" ref={row} data-todo={id} data-done={todo.done} data-edited={editor && true} style={hue(editor)}>
      <button
        className="handle"
        aria-label={`Move ${todo.title}: drag, or press the arrow keys`}
        onKeyDown={step}
        onPointerDown={(event) => drag(row.current!, event.nativeEvent, (before) => move(list, id, before))}
      >
        <Icon name="grip" />
      </button>
      <input
        type="checkbox"
        checked={todo.done}
        aria-label={`${todo.title} is done`}
        onChange={(event) => tick(list, id, event.target.checked)}
      />
      {isEditing ? (
        <TitleField
          title={todo.title}
          onType={(draft) => onShow({ at: draft === undefined ? undefined : id, draft })}
          onEnd={stop}
        />
      ) : (
        <button className="title" aria-label={`Edit ${todo.title}`} onClick={() => setEditing(true)}>
          {editor?.draft ?? todo.title}
        </button>
      )}
      {editor && <span className="tag">{editor.name}</span>}
      {isWaiting && <Icon name="clock" />}
      <button className="icon-button delete" aria-label={`Delete ${todo.title}`} onClick={() => remove(list, id)}>
        <Icon name="close" />
      </button>
    </li>
  );
});

/** Whether a todo has a change that the server has not confirmed yet. */
function useIsWaiting(list: TodoList, id: string): boolean {
  const subscribe = useCallback((fn: () => void) => list.subscribe(fn), [list]);
  return useSyncExternalStore(subscribe, () => {
    const shown = list.state?.todos[id];
    const confirmed = list.confirmed?.todos[id];
    return list.status !== "online" && (shown?.title !== confirmed?.title || shown?.done !== confirmed?.done);
  });
}
