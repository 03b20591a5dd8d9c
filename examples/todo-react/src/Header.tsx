/** The name of the list, whether it is live, and who is here. */

import { useThreadState } from "plait-client/react";

import type { TodoList } from "./list.ts";
import { NameField } from "./NameField.tsx";
import { hue } from "./people.ts";
import type { Person } from "./people.ts";
import { StatusBadge } from "./StatusBadge.tsx";

interface HeaderProps {
  list: TodoList;
  me: Person;
  others: ReadonlyMap<string, Person>;
  onRename: (name: string) => void;
}

export function Header({ list, me, others, onRename }: HeaderProps) {
  const open = useThreadState(list, (state) => Object.values(state?.todos ?? {}).filter((todo) => !todo.done).length);
  return (
    <header>
      <div className="heading">
        <h1>{list.name}</h1>
        <StatusBadge list={list} />
      </div>
      <p className="open-count">{open === 0 ? "Nothing left to do" : `${open} to do`}</p>
      <ul className="people" aria-label="Who is here">
        <li className="person" style={hue(me)}>
          <NameField name={me.name} onRename={onRename} />
          <small>you</small>
        </li>
        {[...others].map(([connection, person]) => (
          <li key={connection} className="person" style={hue(person)}>
            {person.name || "Nameless"}
            {person.at && <small>typing…</small>}
          </li>
        ))}
      </ul>
    </header>
  );
}
