/**
 * The runs of a thread's tasks in a client: no I/O.
 *
 * The same as `task_runs.py` of the Python client, with the same names.
 */

import { OpenedPart } from "./opened-part.js";
import type { Page, Part, TaskRun } from "./protocol.js";

const ENDS: readonly (string | undefined)[] = ["done", "failed", "cancelled"];

/** The known runs of a part, from when it is opened: those that have not ended, and the last ones that have. */
export class TaskRuns extends OpenedPart {
  /** The runs, in the order in which they were begun. */
  #runs = new Map<string, TaskRun>();
  #newest = 0;
  /** The ids of the ended runs, in the order of their ends. */
  readonly #over = new Set<string>();

  /** Returns the runs, oldest first. */
  show(): TaskRun[] {
    return [...this.#runs.values()];
  }

  /** Adds a run that was requested; tells whether it is a new one. */
  learn(run: TaskRun): boolean {
    const isNew = this.isReady && !this.#runs.has(run.id);
    if (isNew) this.#set(run);
    return isNew;
  }

  override close(): void {
    super.close();
    this.#forget();
  }

  // Inside

  protected override applyPage({ runs = [] }: Page): void {
    this.#forget();
    for (const run of runs) this.#set(run);
  }

  protected override apply({ run }: Part): boolean {
    if (run) this.#set(run);
    return true;
  }

  #forget(): void {
    this.#runs = new Map();
    this.#newest = 0;
    this.#over.clear();
  }

  #set(run: TaskRun): void {
    const begun = run.created_at ?? 0;
    const isLate = !this.#runs.has(run.id) && begun < this.#newest;
    this.#newest = Math.max(this.#newest, begun);
    this.#runs.set(run.id, run);
    if (isLate) {
      const runs = this.show().sort((a, b) => (a.created_at ?? 0) - (b.created_at ?? 0));
      this.#runs = new Map(runs.map((each) => [each.id, each]));
    }
    if (!ENDS.includes(run.status)) {
      this.#over.delete(run.id);
      return;
    }
    this.#over.add(run.id);
    const [first] = this.#over;
    if (first !== undefined && this.#over.size > this.limit) {
      this.#over.delete(first);
      this.#runs.delete(first);
    }
  }
}
