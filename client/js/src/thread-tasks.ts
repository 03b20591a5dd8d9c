/** The tasks of a thread for a page: beginning runs, showing them, and sending them events. */

import type { TaskRun } from "./protocol.js";
import type { ArgsOf } from "./rpc.js";
import { TaskRuns } from "./task-runs.js";
import { ThreadPart } from "./thread-part.js";
import type { Carrier, Talk } from "./thread-part.js";

/** The names of the tasks among the methods of a thread. */
export type TaskOf<Rpcs> = string extends keyof Rpcs
  ? string
  : keyof Rpcs extends infer Method
    ? Method extends `task:${infer Name}`
      ? Name
      : never
    : never;

/** The details with which an approval is given or refused. */
export interface Decision {
  reason?: string | undefined;
  metadata?: { readonly [key: string]: unknown } | undefined;
}

/** A client, as far as this file knows it. */
export interface Caller {
  callWith(method: string, options: { args?: readonly unknown[]; kwargs?: { key?: string } }): Promise<unknown>;
}

/** The member that the option `tasks` gives to a client. */
export interface HasTasks<Rpcs> {
  /** The runs of the thread's tasks; undefined without the option. */
  readonly tasks: ThreadTasks<Rpcs>;
}

/**
 * The runs of a thread's tasks: those that have not ended, and the last ones that have. The methods reject with a
 * PlaitError as `call` does; after `disconnected`, a request may be repeated.
 */
export class ThreadTasks<Rpcs = any> extends ThreadPart<TaskRun> {
  readonly #runs: TaskRuns;
  readonly #client: Caller;
  readonly #parts: Map<string, ThreadTasks<Rpcs>>;

  constructor(
    carrier: Carrier,
    session: Talk,
    part: string,
    client: Caller,
    parts = new Map<string, ThreadTasks<Rpcs>>(),
  ) {
    const runs = session.conversations.find(part, TaskRuns);
    super(carrier, session, runs);
    this.#runs = runs;
    this.#client = client;
    this.#parts = parts.set(part, this);
  }

  /** Returns the tasks that the thread's class declares by another name. */
  of(part: string): ThreadTasks<Rpcs> {
    return this.#parts.get(part) ?? new ThreadTasks(this.carrier, this.session, part, this.#client, this.#parts);
  }

  /** Returns a shown run; the same object while it is the same. */
  find(id: string): TaskRun | undefined {
    return this.items.find((run) => run.id === id);
  }

  /** Begins a run of a task; resolves to its id when it is durable. */
  run<Name extends TaskOf<Rpcs>>(name: Name, ...args: ArgsOf<Rpcs, `task:${Name}` & keyof Rpcs>): Promise<string> {
    return this.runWith(name, { args });
  }

  /** Begins a run as `run` does, or joins the run of this task and `key` that has not ended. */
  runWith(name: TaskOf<Rpcs>, { args, key }: { args?: readonly unknown[]; key?: string } = {}): Promise<string> {
    const kwargs = key === undefined ? {} : { key };
    return this.#client.callWith(`task:${name}`, { args: args ?? [], kwargs }) as Promise<string>;
  }

  /** Resolves to a run, which is shown from then on if it was not; to undefined if there is none. */
  async get(id: string): Promise<TaskRun | undefined> {
    const run = (await this.#client.callWith("tasks:get", { args: [id] })) as TaskRun | null;
    if (run && this.#runs.learn(run)) this.session.conversations.tellChanged(this.#runs.part);
    this.carrier.pump();
    return run ?? undefined;
  }

  /** Sends an event to a run; resolves to false if the run has ended, or has got an event of this name before. */
  send(id: string, event: string, data: unknown = null): Promise<boolean> {
    return this.#client.callWith("tasks:send", { args: [id, event, data] }) as Promise<boolean>;
  }

  /** Gives the approval `name` for which a run asks, as `send` does. */
  approve(id: string, name: string, decision: Decision = {}): Promise<boolean> {
    return this.send(id, name, { reason: "", metadata: {}, ...decision, approved: true });
  }

  /** Refuses the approval `name` for which a run asks, as `send` does. */
  reject(id: string, name: string, decision: Decision = {}): Promise<boolean> {
    return this.send(id, name, { reason: "", metadata: {}, ...decision, approved: false });
  }

  /** Cancels a run; resolves to false if it has ended. */
  cancel(id: string): Promise<boolean> {
    return this.#client.callWith("tasks:cancel", { args: [id] }) as Promise<boolean>;
  }
}
