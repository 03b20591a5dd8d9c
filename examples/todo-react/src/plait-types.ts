/** The threads of this app. Written by `plait types`. */

export type TodoListState = Todos;

/** Todos by their ids, and their order: who moves one and who renames it never touch the same place. */
export interface Todos {
  todos: Record<string, Todo>;
  order: string[];
}

/** One thing to do. */
export interface Todo {
  title: string;
  done: boolean;
}

/** What clients may call of todo-list. */
export interface TodoListRpcs {
  /** Take back the last clearing, whoever did it; tell whether there was one. */
  bring_back(): boolean;
  /** Remove what is done, tell everybody, and return how many those were. */
  clear_done(): number;
  /** Take back the caller's last change, unless others have changed the same since; tell whether there was one. */
  undo(): boolean;
}

/** What todo-list emits. */
export interface TodoListEvents {
  cleared: number;
}

/** The hash of TodoListState's schema. */
export const todoListSchema = "1c7d836cd97f4a5d";
