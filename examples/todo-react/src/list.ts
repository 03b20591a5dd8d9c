/** The changes that a page makes to a list. Each is shown at once; the server merges or refuses it. */

import type { PlaitError, ThreadClient } from "plait-client";

import type { Todo, TodoListRpcs, TodoListState } from "./plait-types.ts";

export type TodoList = ThreadClient<TodoListState, TodoListRpcs>;

export type Filter = "all" | "open" | "done";

export function add(list: TodoList, title: string): Promise<number> {
  const id = newId();
  return list.edit((draft) => {
    draft.todos[id] = { title, done: false };
    draft.order.unshift(id);
  });
}

export function rename(list: TodoList, id: string, title: string): void {
  void list.update(`/todos/${id}/title`, title);
}

export function tick(list: TodoList, id: string, done: boolean): void {
  void list.update(`/todos/${id}/done`, done);
}

export function remove(list: TodoList, id: string): void {
  void list.edit((draft) => {
    delete draft.todos[id];
    draft.order = draft.order.filter((each) => each !== id);
  });
}

/** Puts a todo before another, or at the end. */
export function move(list: TodoList, id: string, before: string | undefined): void {
  void list.edit((draft) => {
    if (!(id in draft.todos)) return;
    const order = draft.order.filter((each) => each !== id);
    const at = before === undefined ? -1 : order.indexOf(before);
    order.splice(at < 0 ? order.length : at, 0, id);
    draft.order = order;
  });
}

export function isShown(todo: Todo | undefined, filter: Filter): boolean {
  return todo !== undefined && (filter === "all" || todo.done === (filter === "done"));
}

/** Returns the reason for refusing a change or a call, as a text for the person. */
export function reason(error: PlaitError): string {
  return error.code === "conflict" ? "Someone else has changed that first" : error.message;
}

function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
