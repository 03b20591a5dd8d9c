/** One thread, live: its state, its methods, and what it says. */

import { Answers } from "./answers.js";
import { Caller } from "./caller.js";
import type { CallOptions } from "./caller.js";
import { Changer } from "./changer.js";
import { Deferred } from "./deferred.js";
import { produce } from "./draft.js";
import { Early } from "./early.js";
import { raise } from "./errors.js";
import type { PlaitError } from "./errors.js";
import type { SessionEvent } from "./events.js";
import { freeze } from "./frozen.js";
import type { DeepReadonly } from "./frozen.js";
import { plain } from "./json.js";
import { Link } from "./link.js";
import type { Status } from "./link.js";
import { Listeners } from "./listeners.js";
import { messageOf } from "./messages.js";
import type { ThreadOptions } from "./options.js";
import type { Document } from "./patch.js";
import type { PresenceRecord } from "./presence.js";
import { rpcFace } from "./rpc.js";
import type { AnyRpcs, ArgsOf, ChunkOf, ResultOf, RpcFace } from "./rpc.js";
import type { Session } from "./session.js";
import { whenFound } from "./signals.js";
import type { Chunks } from "./stream.js";
import type { RpcStream } from "./stream.js";
import { Strays } from "./strays.js";
import { Subscribers } from "./subscribers.js";
import type { AnyEvents, Refusal, ThreadChange } from "./subscribers.js";

export type Unsubscribe = () => void;

export class ThreadClient<State = any, Rpcs = AnyRpcs, Events = AnyEvents> {
  static readonly #onUnheard = new Listeners<[Refusal, ThreadClient]>();

  readonly kind: string;
  readonly name: string;
  /** The thread's methods as methods: `client.rpc.addPlayer("Ada")` calls `add_player`. */
  readonly rpc: RpcFace<Rpcs>;
  readonly initialState: DeepReadonly<State> | undefined;

  readonly #link: Link;
  readonly #ready = new Deferred<void>();
  readonly #ended = new Deferred<void>();
  readonly #early = new Early(() => this.status === "closed" || this.#session.at !== undefined);
  readonly #answers = new Answers();
  readonly #changer: Changer;
  readonly #caller: Caller;
  readonly #subscribers = new Subscribers((refusal) => this.#tellUnheard(refusal));
  readonly #strays: Strays;

  constructor(options: ThreadOptions<State>) {
    this.kind = options.kind;
    this.name = options.name;
    this.initialState =
      options.initialState === undefined ? undefined : (freeze(plain(options.initialState)) as DeepReadonly<State>);
    this.rpc = rpcFace<Rpcs>((method, args) => this.#caller.result(method, { args }));
    this.#link = new Link(options as ThreadOptions<unknown>, {
      onEvent: (event) => this.#handle(event),
      onBytes: (data) => this.#subscribers.message.tell(data),
      onMoved: () => this.#tell(),
      onEnd: () => this.#end(),
    });
    this.#changer = new Changer(
      this.#link,
      this.#early,
      this.#answers,
      this.#subscribers,
      this.initialState as Document,
    );
    this.#caller = new Caller(this.#link, this.#early, this.#answers);
    this.#strays = new Strays(options as ThreadOptions<unknown>, (event) => this.#subscribers.take(event));
    if (options.connect !== false) this.connect();
  }

  // What is known

  /**
   * What the user sees: the server's state, with the changes on it that the server has not answered for.
   * It is frozen; parts that stay the same stay the same objects. Undefined until there is a state.
   */
  get state(): DeepReadonly<State> | undefined {
    return this.#changer.shown as DeepReadonly<State> | undefined;
  }

  /** The last state that the server told. */
  get confirmed(): DeepReadonly<State> | undefined {
    return this.#session.confirmed as DeepReadonly<State> | undefined;
  }

  /** The version of `confirmed`; undefined before the first join. */
  get version(): number | undefined {
    return this.#session.at?.[1];
  }

  get status(): Status {
    return this.#link.status;
  }

  /** Why the client has stopped by itself, if it has. */
  get error(): PlaitError | undefined {
    return this.#link.error;
  }

  /** Why there is no connection, as it was the last time that one was tried or lost; undefined while there is one. */
  get trouble(): PlaitError | undefined {
    return this.#link.trouble;
  }

  /** How many changes the server has not answered for; one that a join has answered for counts no more. */
  get pending(): number {
    return this.#session.pushes.filter((push) => !push.isSettled).length + this.#early.changes;
  }

  /** The id by which others know this client; it stays the same over reconnects. Undefined before the first join. */
  get connection(): string | undefined {
    return this.#session.joined?.connection;
  }

  /** Whether this connection may not change the state. */
  get readonly(): boolean {
    return this.#session.joined?.readonly ?? false;
  }

  /** What is to be seen of each connection, this one too, by its id; as it was last told, while offline. */
  get presence(): PresenceRecord {
    return this.#session.presence;
  }

  /** Resolves when the thread is joined for the first time; rejects when that will not be. */
  get ready(): Promise<void> {
    return this.#ready.promise;
  }

  // Changing the state

  /**
   * Sets the state, to a value or to what a function makes of it; only what differs is sent. It is shown at once.
   * Resolves to the version that has it, and rejects with the reason when the server refuses.
   */
  set(next: DeepReadonly<State> | ((state: DeepReadonly<State>) => DeepReadonly<State>)): Promise<number> {
    return this.#changer.set(typeof next === "function" ? (next as (state: unknown) => unknown) : () => next);
  }

  /**
   * Changes a draft of the state as the function likes, and does with it as `set` does. An object that the function
   * returns without having changed the draft is the next state.
   */
  edit(recipe: (draft: State) => unknown): Promise<number> {
    return this.#changer.set((state) => produce(state as State, recipe));
  }

  /** Sets one place of the state, by its JSON pointer; `-` behind an array's pointer puts an element at its end. */
  update(pointer: string, value: unknown): Promise<number> {
    return this.#changer.update(pointer, value);
  }

  // Calling methods

  /** Calls a method, now or when the thread is joined next. A call that is under way when the connection goes is lost. */
  call<Name extends keyof Rpcs & string>(method: Name, ...args: ArgsOf<Rpcs, Name>): Promise<ResultOf<Rpcs, Name>> {
    return this.callWith(method, { args });
  }

  /** Calls a method with keyword arguments, or so that it can be cancelled. */
  callWith<Name extends keyof Rpcs & string>(method: Name, options: CallOptions = {}): Promise<ResultOf<Rpcs, Name>> {
    return this.#caller.result(method, options) as Promise<ResultOf<Rpcs, Name>>;
  }

  /** Calls a method that streams. The calling begins at once, not with the first look at a chunk. */
  stream<Name extends keyof Rpcs & string>(
    method: Name,
    ...args: ArgsOf<Rpcs, Name>
  ): RpcStream<ChunkOf<Rpcs, Name>, ResultOf<Rpcs, Name>> {
    return this.#caller.call(method, { args }) as Chunks<ChunkOf<Rpcs, Name>, ResultOf<Rpcs, Name>>;
  }

  // Messages and presence

  /**
   * Sends a message to the thread's `on_message`, bytes as a binary one, now or when it is joined next. Throws a
   * PlaitError when it is larger than the server takes, and when the client is closed.
   */
  send(data: unknown): void {
    this.#checkOpen();
    const message = messageOf(data);
    this.#early.inTurn(() => {
      this.#session.message(message);
      this.#link.pump();
    });
  }

  /**
   * Says what others are to see of this connection, and of those that follow it; null takes it away. Throws as `send`
   * does, and changes nothing then.
   */
  setPresence(data: unknown): void {
    this.#checkOpen();
    this.#session.setPresence(plain(data));
    this.#link.pump();
  }

  // Being told

  /**
   * Tells `fn` each change that was refused, of any client, where nobody awaits it and its client has no listener of its
   * own. Without such a function, the console shows it.
   */
  static onRefused(fn: (refusal: Refusal, client: ThreadClient) => void): Unsubscribe {
    return ThreadClient.#onUnheard.add(fn);
  }

  /** Calls `fn`, with nothing, whenever one of the values above has changed: the state, the status, the presence. */
  subscribe(fn: () => void): Unsubscribe {
    return this.#subscribers.moved.add(fn);
  }

  /**
   * Tells `fn` each change of others, when it is in `state` already; several as one where the server has sent them so.
   * Not what was missed while offline.
   */
  onChange(fn: (change: ThreadChange) => void): Unsubscribe {
    return this.#subscribers.change.add(fn);
  }

  /** Tells `fn` what the thread sends; a binary message is an ArrayBuffer. */
  onMessage(fn: (data: any) => void): Unsubscribe {
    return this.#subscribers.message.add(fn);
  }

  /** Tells `fn` what the thread emits under a name. */
  onEvent<Name extends keyof Events & string>(name: Name, fn: (data: Events[Name]) => void): Unsubscribe {
    return this.#subscribers.event(name).add(fn as (data: unknown) => void);
  }

  /** Tells `fn` each change of this client that the server refused, whether or not somebody awaits it. */
  onRefused(fn: (refusal: Refusal) => void): Unsubscribe {
    return this.#subscribers.refused.add(fn);
  }

  /** Resolves to the state as soon as `predicate` holds of it, at once if it does already. */
  waitFor(
    predicate: (state: DeepReadonly<State>) => boolean,
    { signal }: { signal?: AbortSignal } = {},
  ): Promise<DeepReadonly<State>> {
    const look = () => {
      const state = this.#session.shown as DeepReadonly<State> | undefined;
      if (state !== undefined && predicate(state)) return state;
      this.#checkOpen();
      return undefined;
    };
    return whenFound(look, (fn) => this.subscribe(fn), signal);
  }

  // Life

  /** Begins, where the options said `connect: false`; does nothing a second time. */
  connect(): void {
    this.#link.connect();
  }

  /**
   * Closes the client for good; resolves when its connection has ended. Before that, what waits is sent, and its changes
   * are answered, for up to five seconds and as long as there is a connection. What a storage keeps just stays there.
   */
  close(): Promise<void> {
    this.#link.close();
    return this.#ended.promise;
  }

  #checkOpen(): void {
    if (this.status === "closed") throw this.#link.closedError;
  }

  get #session(): Session {
    return this.#link.session;
  }

  #handle(event: SessionEvent): void {
    const answer = event.type === "refused" ? this.#answers.of(event.push) : undefined;
    this.#answers.take(event);
    this.#subscribers.take(event, answer);
    if (event.type === "joined" || event.type === "restored") this.#early.run();
    if (event.type === "joined") {
      this.#ready.resolve();
      // Where no lock is given, there are no places of others.
      this.#strays.send().catch(() => undefined);
    } else if (event.type === "dropped") raise(event.error);
    // Whoever asks for nothing would otherwise see a page that just stands still.
    else if (event.type === "stopped" && this.error) console.error(this.error);
  }

  #end(): void {
    const error = this.#link.closedError;
    this.#strays.close();
    this.#ready.reject(error);
    this.#early.run();
    const dropped = this.#link.keeps ? [] : this.#session.pushes.filter((push) => !push.isSettled);
    for (const push of dropped) this.#subscribers.take({ type: "refused", push, error }, this.#answers.of(push));
    this.#answers.failAll(error);
    this.#ended.resolve();
  }

  #tellUnheard(refusal: Refusal): void {
    if (!ThreadClient.#onUnheard.isEmpty) ThreadClient.#onUnheard.tell(refusal, this as unknown as ThreadClient);
    else console.error(`A change of ${this.kind}/${this.name} was refused, and nothing handles it:`, refusal.error);
  }

  #tell(): void {
    const { state, confirmed, version, status, trouble, pending, connection, readonly, presence } = this;
    this.#subscribers.compare([state, confirmed, version, status, trouble, pending, connection, readonly, presence]);
  }
}
