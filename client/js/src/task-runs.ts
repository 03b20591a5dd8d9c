/**
 * The runs of a thread's tasks as a client has them: no I/O.
 *
 * The same as `task_runs.py` of the Python client, with the same names.
 */

import { OpenedPart } from "./opened-part.js";
import type { Page, Part, TaskRun } from "./protocol.js";

/** What is known of the runs of a part, from when it is opened. */
export class TaskRuns extends OpenedPart {
  #runs = new Map<string, TaskRun>();

  /** Returns the runs, oldest first. */
  show(): TaskRun[] {
    return [...this.#runs.values()].sort((a, b) => (a.created_at ?? 0) - (b.created_at ?? 0));
  }

  /** Adds a run that was asked for; tells whether it is one more. */
  learn(run: TaskRun): boolean {
    const isNew = this.isReady && !this.#runs.has(run.id);
    if (isNew) this.#runs.set(run.id, run);
    return isNew;
  }

  override close(): void {
    super.close();
    this.#runs = new Map();
  }

  // Inside

  protected override applyPage({ runs = [] }: Page): void {
    this.#runs = new Map(runs.map((run) => [run.id, run]));
  }

  protected override apply({ run }: Part): boolean {
    if (run) this.#runs.set(run.id, run);
    return true;
  }
}
