/** The page: one list, the people who have it open, and the actions. */

import { keepIn } from "plait-client";
import { useThread, useThreadEvent } from "plait-client/react";
import { useState } from "react";

import { Composer } from "./Composer.tsx";
import { Header } from "./Header.tsx";
import { reason } from "./list.ts";
import type { Filter } from "./list.ts";
import { NoticeLine, useNotice } from "./notices.tsx";
import { NEW, useMe, usePeople } from "./people.ts";
import { todoListSchema } from "./plait-types.ts";
import type { TodoListEvents, TodoListRpcs, TodoListState } from "./plait-types.ts";
import { TodoRows } from "./TodoRows.tsx";
import { Toolbar } from "./Toolbar.tsx";
import { useUndo } from "./undo.ts";

export function App({ name }: { name: string }) {
  const [notice, notify, dismiss] = useNotice();
  const [filter, setFilter] = useState<Filter>("all");
  const list = useThread<TodoListState, TodoListRpcs>({
    kind: "todo-list",
    name,
    schema: todoListSchema,
    // Changes made offline survive a reload, and are still known as this page's own.
    storage: keepIn(sessionStorage),
    onRefused: ({ error }) => notify({ text: reason(error), isError: true }),
  });
  const [me, show] = useMe(list);
  const { others, editors } = usePeople(list);
  const undo = useUndo(list, notify, dismiss);
  useThreadEvent(list, "cleared", (count: TodoListEvents["cleared"]) => {
    notify({
      text: count === 1 ? "1 done todo was cleared" : `${count} done todos were cleared`,
      action: { label: "Bring back", run: undo.bringBack },
    });
  });

  return (
    <>
      <main>
        <Header list={list} me={me} others={others} onRename={(to) => show({ name: to })} />
        <Composer list={list} writer={editors.get(NEW)} onShow={show} />
        <TodoRows list={list} filter={filter} editors={editors} onShow={show} />
        <Toolbar list={list} filter={filter} onFilter={setFilter} undo={undo} />
      </main>
      <NoticeLine notice={notice} onDismiss={dismiss} />
    </>
  );
}
