/** The threads of this app. Written by `plait types`. */

export type TodoListState = Todos;

/** Todos by id, and their order, so that moving and renaming a todo at the same time is no conflict. */
export interface Todos {
  todos: Record<string, Todo>;
  order: string[];
}

/** One thing to do. */
export interface Todo {
  title: string;
  done: boolean;
}

export type TodoListStateInput = TodosInput;

/** Todos by id, and their order, so that moving and renaming a todo at the same time is no conflict. */
export interface TodosInput {
  todos: Record<string, TodoInput>;
  order: string[];
}

/** One thing to do. */
export interface TodoInput {
  title: string;
  done?: boolean;
}

/** What clients may call of todo-list. */
export interface TodoListRpcs {
  /** Undo the last clearing, by any client; return whether there was one. */
  bring_back(): boolean;
  /** Remove the done todos, emit an event, and return how many there were. */
  clear_done(): number;
  /** Undo the caller's last change, unless others have changed the same place; return whether there was one. */
  undo(): boolean;
}

/** What todo-list emits. */
export interface TodoListEvents {
  cleared: number;
}

/** The hash of TodoListState's schema. */
export const todoListSchema = "1c7d836cd97f4a5d";

// @ts-ignore: programs without the package use the other types.
declare module "plait-client" {
  interface Kinds {
    "todo-list": { state: TodoListState; rpcs: TodoListRpcs; events: TodoListEvents };
  }
}
