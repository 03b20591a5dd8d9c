/** A thread, live: its state, its methods, its messages and events. */

import { Calls } from "./calls.js";
import type { CallOptions, Optimism, RpcStream } from "./calls.js";
import { Deferred, whenFound } from "./deferred.js";
import { edited } from "./draft.js";
import { EarlyQueue, InitialState } from "./early.js";
import { Edits } from "./edits.js";
import { raise } from "./errors.js";
import type { PlaitError } from "./errors.js";
import type { SessionEvent } from "./events.js";
import { freeze, isObject, plain } from "./json.js";
import type { DeepReadonly, Document, Json } from "./json.js";
import { Link } from "./link.js";
import type { Status } from "./link.js";
import { Listeners, ThreadListeners } from "./listeners.js";
import type { AnyEvents, Refusal, ThreadChange } from "./listeners.js";
import { messageOf } from "./messages.js";
import { missing } from "./options.js";
import type { Keeper, ThreadOptions } from "./options.js";
import { textComparison } from "./parts.js";
import type { CompareTexts, HasCache, HasFiles, History, TextMethods, TextWatchers, UndoMethods } from "./parts.js";
import { clock } from "./platform.js";
import type { PlaceIn, Sendable, ValueAt } from "./places.js";
import type { PresenceRecord } from "./presence.js";
import type { QueryMethods } from "./queries-part.js";
import { rpcFace } from "./rpc.js";
import type { AnyRpcs, ArgsOf, ChunkOf, ResultOf, RpcFace } from "./rpc.js";
import type { AgentOf, InputOf, OutputOf, YieldOf } from "./runs.js";
import type { Session } from "./session.js";
import type { ThreadMessages } from "./thread-messages.js";
import type { HasTasks } from "./thread-tasks.js";

export type Unsubscribe = () => void;

/** The methods that the options `text`, `undo` and `queries` bring; without them they throw a TypeError. */
export interface ThreadClient<State = any, Rpcs = AnyRpcs, Events = AnyEvents, Missing extends undefined = undefined>
  extends TextMethods, UndoMethods, QueryMethods<Rpcs>, HasFiles, HasCache, HasTasks<Rpcs> {}

/** `subscribe` reports changes of these values; the data of a join about the connection changes with the status. */
const COMPARED = ["state", "confirmed", "version", "status", "trouble", "pending", "presence", "ownPresence"] as const;

type Methods = TextMethods & UndoMethods & QueryMethods<any>;

/** The methods that options bring. */
const METHODS = {
  text: ["splice", "append", "goesOn", "editsBetween", "onText"],
  undo: ["undo", "redo", "canUndo", "canRedo"],
  queries: ["query"],
} as const satisfies { text: (keyof TextMethods)[]; undo: (keyof UndoMethods)[]; queries: (keyof QueryMethods<any>)[] };

/** `Missing` is the type of `state` before there is one: never, if the client is known to have it. */
export class ThreadClient<State = any, Rpcs = AnyRpcs, Events = AnyEvents, Missing extends undefined = undefined> {
  static readonly #onUnhandled = new Listeners<[Refusal, ThreadClient]>();

  readonly kind: string;
  readonly name: string;
  /** The thread's methods as methods: `client.rpc.addPlayer("Ada")` calls `add_player`. */
  readonly rpc: RpcFace<Rpcs>;
  readonly initialState: DeepReadonly<State> | undefined;
  readonly #link: Link;
  readonly #ready = new Deferred<void>();
  readonly #closed = new Deferred<void>();
  readonly #early = new EarlyQueue(() => this.status === "closed" || this.#session.epoch !== undefined);
  readonly #edits: Edits;
  readonly #calls: Calls;
  readonly #listeners = new ThreadListeners((refusal) => this.#tellUnhandled(refusal));
  readonly #abandoned: ReturnType<Keeper["newQueues"]> | undefined;
  readonly #options: ThreadOptions<State>;
  #history: History | undefined;
  #texts: TextWatchers | undefined;
  readonly #methods: Partial<Record<keyof Methods, (...args: any[]) => unknown>> = {};

  constructor(options: ThreadOptions<State>) {
    if (options.storage && !options.storage.newQueues) missing("the option storage", "keepIn");
    if (options.cacheKey && !options.cache) missing("cacheKey", "the option cache");
    bindMethods(this, ThreadClient.prototype);
    this.#options = options;
    for (const [option, names] of Object.entries(METHODS))
      for (const name of names) {
        // A method of a subclass comes first.
        (this as Record<string, unknown>)[name] ??= (...args: any[]) =>
          (this.#methods[name] ?? missing(name, `the option ${option}`))(...args);
      }
    this.kind = options.kind;
    this.name = options.name;
    this.initialState =
      options.initialState === undefined ? undefined : (freeze(plain(options.initialState)) as DeepReadonly<State>);
    this.rpc = rpcFace<Rpcs>((method, args) => this.#calls.call(method, { args }));
    this.#link = new Link(options as ThreadOptions<unknown>, {
      onEvent: (event) => this.#handleEvent(event),
      onBytes: (data) => this.#listeners.message.tell(data),
      onUpdate: () => this.#compare(),
      onShown: (change) => {
        this.#history?.handle(change);
        this.#texts?.add(change);
      },
      onClosed: () => this.#handleClosed(),
    });
    this.#edits = new Edits(this.#link, this.#early, this.#listeners, this.initialState as Document);
    this.#calls = new Calls(this.#link, this.#early);
    this.#abandoned = options.storage?.newQueues(options as ThreadOptions<unknown>, (event) =>
      this.#listeners.dispatch(event),
    );
    this.addParts();
    if (options.connect !== false) this.connect();
  }

  /** Keeps Vue's `ref` and `reactive` from making a proxy of the client, which could not reach its private members. */
  get __v_skip(): true {
    return true;
  }

  // State and status

  /**
   * The state to show: the server's, with this client's changes that have no answer yet. It is frozen, and its
   * unchanged parts stay the same objects. Undefined until there is a state.
   */
  get state(): DeepReadonly<State> | Missing {
    return this.#edits.shown as DeepReadonly<State> | Missing;
  }

  /** The last state that the server sent. */
  get confirmed(): DeepReadonly<State> | undefined {
    return this.#session.confirmed as DeepReadonly<State> | undefined;
  }

  /**
   * The version of `confirmed`; without the state, that of the last join or result of a query. Undefined before the first
   * join.
   */
  get version(): number | undefined {
    return this.#session.version;
  }

  get status(): Status {
    return this.#link.status;
  }

  /** Why the client was closed, unless by `close()`. */
  get error(): PlaitError | undefined {
    return this.#link.error;
  }

  /** Why the last connection was lost or failed; undefined while there is one. */
  get trouble(): PlaitError | undefined {
    return this.#link.trouble;
  }

  /** How many changes of this client the server has neither applied nor refused. */
  get pending(): number {
    return this.#session.pending.length + this.#early.edits;
  }

  /** The id by which others see this client; it stays the same over reconnects. Undefined before the first join. */
  get connection(): string | undefined {
    return this.#session.connection;
  }

  /** Whether this connection may not change the state. */
  get readonly(): boolean {
    return this.#session.isReadonly;
  }

  /** The presence of each connection, including this one, by its id; while offline, as last received. */
  get presence(): PresenceRecord {
    return this.#session.presence;
  }

  /** The last value of `setPresence`, null for nothing. */
  get ownPresence(): Json {
    return this.#session.ownPresence;
  }

  /** Resolves when the thread is joined for the first time; rejects when the client is closed before that. */
  get ready(): Promise<void> {
    return this.#ready.promise;
  }

  // Changing the state

  /**
   * Sets the state, to a value or to the result of a function for it; only the difference is sent. It is shown at once.
   * Resolves to the version that has it, and rejects with a PlaitError when the server refuses it.
   */
  set(next: DeepReadonly<State> | ((state: DeepReadonly<State>) => DeepReadonly<State>)): Promise<number> {
    return this.#edits.set(typeof next === "function" ? (next as (state: unknown) => unknown) : () => next);
  }

  /**
   * Sets the state to the result of a function that changes a draft in place. An object that the function returns
   * without having changed the draft is the next state.
   */
  edit<Result>(
    recipe: (draft: State) => Result & (Result extends PromiseLike<unknown> ? never : unknown),
  ): Promise<number> {
    return this.#edits.set((state) => edited(state as State, recipe));
  }

  /**
   * Sets the value at a JSON pointer; `-` after an array's pointer appends an element. In a text of the thread only the
   * differences are sent, as with `set` and `edit`, so that others' typing in it at the same time stays.
   */
  update<Pointer extends string>(
    pointer: Pointer & PlaceIn<State, Pointer>,
    value: DeepReadonly<ValueAt<State, Pointer>>,
  ): Promise<number> {
    return this.#edits.update(pointer, value);
  }

  // Undo and redo

  /**
   * Makes one step for `undo` of all changes of this page until `resumeHistory`, such as those of a drag, however long
   * it lasts. Each pause needs a call of `resumeHistory`.
   */
  pauseHistory(): void {
    this.#history?.pause();
  }

  resumeHistory(): void {
    this.#history?.resume();
  }

  // Calling methods

  /**
   * Calls a method; while offline, at the next join. A call under way when the connection is lost rejects. With the
   * option `optimistic`, `{ optimistic: (draft) => … }` after the arguments shows at once what the call will do.
   */
  call<Name extends keyof Rpcs & string>(
    method: Name,
    ...args: [...ArgsOf<Rpcs, Name>, Required<Optimism<State>>]
  ): Promise<ResultOf<Rpcs, Name>>;
  call<Name extends keyof Rpcs & string>(method: Name, ...args: ArgsOf<Rpcs, Name>): Promise<ResultOf<Rpcs, Name>>;
  call<Name extends keyof Rpcs & string>(method: Name, ...args: unknown[]): Promise<ResultOf<Rpcs, Name>> {
    return this.callWith(method, { args });
  }

  /** Calls a method with keyword arguments, with a signal that cancels the call, or optimistically, as `call` does. */
  callWith<Name extends keyof Rpcs & string>(
    method: Name,
    options: CallOptions<State> = {},
  ): Promise<ResultOf<Rpcs, Name>> {
    return this.#calls.call(method, options) as Promise<ResultOf<Rpcs, Name>>;
  }

  /** Calls a method that streams. The call begins at once, before the first chunk is read. */
  stream<Name extends keyof Rpcs & string>(
    method: Name,
    ...args: ArgsOf<Rpcs, Name>
  ): RpcStream<ChunkOf<Rpcs, Name>, ResultOf<Rpcs, Name>> {
    return this.#calls.stream(method, { args }) as RpcStream<ChunkOf<Rpcs, Name>, ResultOf<Rpcs, Name>>;
  }

  // Running agents

  /**
   * Runs an agent in this thread, as `call` calls a method. Resolves to its output; for an agent that streams, to a
   * list. The output of an interrupted run is an Interruption; in a list, it is the last element.
   */
  run<Name extends AgentOf<Rpcs>>(agent: Name, ...input: InputOf<Rpcs, Name>): Promise<OutputOf<Rpcs, Name>> {
    return this.#calls.gather(`run:${agent}`, { args: input }) as Promise<OutputOf<Rpcs, Name>>;
  }

  /** Runs an agent that streams. The run begins at once; leaving the loop interrupts the agent. */
  runStream<Name extends AgentOf<Rpcs>>(
    agent: Name,
    ...input: InputOf<Rpcs, Name>
  ): RpcStream<YieldOf<Rpcs, Name>, undefined> {
    return this.#calls.stream(`run:${agent}`, { args: input }) as RpcStream<YieldOf<Rpcs, Name>, undefined>;
  }

  /** Interrupts the agent that runs in this thread, even for another client; resolves to whether one runs. */
  interrupt(message?: unknown): Promise<boolean> {
    return this.#calls.call("run:interrupt", { args: message === undefined ? [] : [message] }) as Promise<boolean>;
  }

  // Messages and presence

  /**
   * Sends a message to the thread's `on_message`; bytes become a binary message. While offline, it is sent at the next
   * join. Throws a PlaitError if the message is larger than the server takes, or the client is closed.
   */
  send<Data>(data: Data & Sendable<Data>): void {
    this.#checkOpen();
    const message = messageOf(data);
    this.#early.inTurn(() => {
      this.#session.send(message);
      this.#link.pump();
    });
  }

  /**
   * Sets the presence that others see of this client; null removes it. Those that are set in a row are sent as one, at
   * most one in 25 ms. It is sent again after a reconnect. Throws as `send` does, and then changes nothing.
   */
  setPresence<Data>(data: Data & Sendable<Data>): void {
    this.#checkOpen();
    this.#session.setPresence(plain(data));
    this.#link.pump();
  }

  /**
   * Sets members of the presence that others see of this client; the other members stay, and undefined removes one.
   * Throws as `send` does.
   */
  updatePresence<Data extends object>(patch: Data & Sendable<Data>): void {
    this.setPresence({ ...(isObject(this.ownPresence) && this.ownPresence), ...patch } as Json);
  }

  /**
   * Emits an event to the others, if the thread's class allows it to clients. An event is of a moment: while offline it
   * is dropped. Throws as `send` does.
   */
  emit<Name extends keyof Events & string>(name: Name, data: Events[Name]): void {
    this.#checkOpen();
    this.#session.emit(name, plain(data));
    this.#link.pump();
  }

  /** The messages that the thread keeps. Throws a TypeError without the option `messages`. */
  get messages(): ThreadMessages {
    return missing("messages");
  }

  // Listeners

  /**
   * Calls `fn` with each refused change that is not awaited and whose client has no listener of its own. Without such a
   * function, the change is logged to the console.
   */
  static onRefused(fn: (refusal: Refusal, client: ThreadClient) => void): Unsubscribe {
    return ThreadClient.#onUnhandled.add(fn);
  }

  /** Calls `fn` whenever one of the values above has changed: the state, the status, the presence. */
  subscribe(fn: () => void): Unsubscribe {
    return this.#listeners.update.add(fn);
  }

  /**
   * Calls `fn` with each change by others, after it is in `state`; several changes that the server sent as one are one
   * call. Missed changes while offline are not reported.
   */
  onChange(fn: (change: ThreadChange) => void): Unsubscribe {
    return this.#listeners.change.add(fn);
  }

  /** Calls `fn` with each message of the thread; a binary one is an ArrayBuffer. */
  onMessage(fn: (data: any) => void): Unsubscribe {
    return this.#listeners.message.add(fn);
  }

  /**
   * Calls `fn` with the data of each event `name`, and the id of the connection whose client has emitted it; undefined
   * if the thread has.
   */
  onEvent<Name extends keyof Events & string>(
    name: Name,
    fn: (data: Events[Name], from: string | null | undefined) => void,
  ): Unsubscribe {
    return this.#listeners.event(name).add(fn);
  }

  /** Calls `fn` with each refused change of this client, whether or not it is awaited. */
  onRefused(fn: (refusal: Refusal) => void): Unsubscribe {
    return this.#listeners.refused.add(fn);
  }

  /** Resolves to the first state for which `predicate` returns true, which may be the current one. */
  waitFor(
    predicate: (state: DeepReadonly<State>) => boolean,
    { signal }: { signal?: AbortSignal } = {},
  ): Promise<DeepReadonly<State>> {
    const look = () => {
      const state = this.#session.shown as DeepReadonly<State> | undefined;
      if (state !== undefined && predicate(state)) return state;
      return this.#checkOpen();
    };
    return whenFound(look, this.subscribe, signal);
  }

  // Connecting and closing

  /** Connects, if the options had `connect: false`; a second call does nothing. */
  connect(): void {
    this.#link.connect();
  }

  /** Replaces the connection at once, as when an app that was suspended is shown again. */
  reconnect(): void {
    this.#link.reconnect();
  }

  /**
   * Closes the client for good; resolves when its connection is closed. While there is a connection, waiting calls,
   * messages and changes are sent and changes answered first, for up to five seconds. Changes in a storage stay there.
   */
  close(): Promise<void> {
    this.#link.close();
    return this.#closed.promise;
  }

  /** @internal Takes up the parts among the options that the client does not have yet; or `queries` without the option. */
  addParts({ queries }: Pick<ThreadOptions<State>, "queries"> = this.#options): void {
    const { text, undo, messages, tasks, files, cache, optimistic } = this.#options;
    // Each comparison has a budget of its own.
    const compareTexts: CompareTexts = (before, after) => textComparison(this.#options)?.(before, after) ?? [];
    this.#texts ??= text?.newWatchers(compareTexts);
    this.#history ??= undo?.newHistory(() => clock.now(), this.#options);
    for (const part of [messages, tasks, files, cache, optimistic])
      part?.put(this, this.#link, this.#options, this.#edits, InitialState);
    Object.assign(
      this.#methods,
      text?.newMethods(this.#edits, this.#texts as TextWatchers, compareTexts),
      undo?.newMethods(this.#edits, this.#history as History),
      queries?.newMethods(this, this.#link),
    );
  }

  #checkOpen(): undefined {
    if (this.status === "closed") throw this.#link.closedError;
  }

  get #session(): Session {
    return this.#link.session;
  }

  #handleEvent(event: SessionEvent): void {
    const answer = this.#edits.settle(event);
    if ("push" in event) this.#history?.settle(event.push, event.type === "refused");
    this.#calls.settle(event);
    this.#listeners.dispatch(event, answer);
    if (event.type === "joined" || event.type === "restored") this.#early.run();
    if (event.type === "joined") {
      this.#ready.resolve();
      // A page without access to the locks cannot send them.
      this.#abandoned?.send().catch(() => undefined);
    } else if (event.type === "dropped") raise(event.error);
    // A page that awaits nothing would otherwise stop silently.
    else if (event.type === "stopped" && this.error) console.error(this.error);
  }

  #handleClosed(): void {
    const error = this.#link.closedError;
    this.#abandoned?.close();
    this.#ready.reject(error);
    this.#early.run();
    if (!this.#link.isKept)
      for (const push of this.#session.pending)
        this.#listeners.dispatch({ type: "refused", push, error }, this.#edits.answerOf(push));
    this.#edits.failAll(error);
    this.#calls.failAll(error);
    this.#closed.resolve();
  }

  #tellUnhandled(refusal: Refusal): void {
    if (!ThreadClient.#onUnhandled.isEmpty) ThreadClient.#onUnhandled.tell(refusal, this as unknown as ThreadClient);
    else console.error(`a change of ${this.kind}/${this.name} was refused; see onRefused:`, refusal.error);
  }

  #compare(): void {
    this.#texts?.tell(this.#edits.shown, !this.#edits.isEarly);
    this.#listeners.compare(COMPARED.map((name) => this[name]));
  }
}

/** Binds methods to their object, as after `const { subscribe } = room`. */
function bindMethods(object: object, prototype: object): void {
  for (const [name, descriptor] of Object.entries(Object.getOwnPropertyDescriptors(prototype))) {
    if (name === "constructor" || !descriptor.value) continue;
    // A method of a subclass comes first.
    const method = (object as Record<string, () => unknown>)[name] as () => unknown;
    Object.defineProperty(object, name, { ...descriptor, value: method.bind(object) });
  }
}
