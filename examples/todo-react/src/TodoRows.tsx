/** The todos in their order. The list renders when the order changes; each row renders by itself. */

import { useThreadState, useThreadStatus } from "plait-client/react";
import { useCallback } from "react";

import { isShown, move } from "./list.ts";
import type { Filter, TodoList } from "./list.ts";
import type { Person, Show } from "./people.ts";
import { TodoRow } from "./TodoRow.tsx";

interface TodoRowsProps {
  list: TodoList;
  filter: Filter;
  editors: ReadonlyMap<string, Person>;
  onShow: Show;
}

const EMPTY: Record<Filter, string> = {
  all: "The list is empty. Write the first todo above.",
  open: "Everything is done.",
  done: "Nothing is done yet.",
};

const UNREACHABLE = "The server cannot be reached. The list opens as soon as it can.";

export function TodoRows({ list, filter, editors, onShow }: TodoRowsProps) {
  const ids = useThreadState(
    list,
    (state) => state?.order.filter((id) => isShown(state.todos[id], filter)),
    isSameOrder,
  );
  const status = useThreadStatus(list);
  // The place comes from the rows on the page, so that a row need not know it.
  const onStep = useCallback(
    (row: HTMLElement, step: -1 | 1) => {
      const other = step < 0 ? row.previousElementSibling : row.nextElementSibling;
      const before = step < 0 ? other : other?.nextElementSibling;
      if (other) move(list, idOf(row)!, idOf(before));
    },
    [list],
  );
  if (ids === undefined) return <p className="empty">{status === "offline" ? UNREACHABLE : "Opening the list…"}</p>;
  if (ids.length === 0) return <p className="empty">{EMPTY[filter]}</p>;
  return (
    <ul className="rows">
      {ids.map((id) => (
        <TodoRow key={id} id={id} list={list} editor={editors.get(id)} onShow={onShow} onStep={onStep} />
      ))}
    </ul>
  );
}

function idOf(row: Element | null | undefined): string | undefined {
  return (row as HTMLElement | null | undefined)?.dataset["todo"];
}

function isSameOrder(a: readonly string[] | undefined, b: readonly string[] | undefined): boolean {
  return a === b || (a?.length === b?.length && a?.every((id, index) => id === b?.[index]) === true);
}
