/** The tasks of a thread, as an option of a client: runs that are shown and begun, events for them. */

import { give } from "./messages-part.js";
import type { Carrier } from "./thread-part.js";
import { ThreadTasks } from "./thread-tasks.js";
import type { Caller } from "./thread-tasks.js";

/** Gives a client tasks. */
export interface TasksPart {
  /** Gives a client, which may have joined already, its `tasks`. */
  put(client: Caller, carrier: Carrier): void;
}

export const tasks: TasksPart = {
  put(client, carrier) {
    give(client, "tasks", carrier, (session) => new ThreadTasks(carrier, session, "tasks", client));
  },
};
