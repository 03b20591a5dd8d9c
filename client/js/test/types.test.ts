import { expectTypeOf, test } from "vitest";

import type { DeepReadonly, Interruption, RpcStream, ThreadClient } from "../src/index.js";
import type { useQuery, useRpc, useThread, useThreadEvent, useThreadState } from "../src/react.js";

interface Game {
  score: number;
}

interface GameRpcs {
  add_player(name: string): number;
  reset(): Promise<void>;
}

interface Card {
  title: string;
}

/** As `plait types` writes it: tests/server/test_types.py. */
interface GeneratedRpcs {
  "a-tail"(count?: number): AsyncIterable<Card>;
  /** By name, with `callWith`: { to?: number | null } */
  add_card(card: Card, function_?: number): number;
  anything(value: unknown): unknown;
  by_hand(first: number, last?: number): AsyncIterable<unknown>;
  clear(): void;
  add_2nd(): number;
  inspect(what: string): number;
  to_string(what: string): string;
  /** By name, with `callWith`: { to: number; fast?: boolean } */
  move(): Card | null;
  newGame(): number;
}

/** As `plait types` writes it, too. */
interface GeneratedEvents {
  goal: Card;
  "half-time": null;
}

// Only looked at by the type checker.
function uses(game: ThreadClient<Game, GameRpcs>, any: ThreadClient) {
  expectTypeOf(game.call("add_player", "Ada")).toEqualTypeOf<Promise<number>>();
  // @ts-expect-error: there is no such method.
  void game.call("add_team", "red");
  // @ts-expect-error: the name is missing.
  void game.rpc.addPlayer();
  expectTypeOf(any.call("anything", 1, "two")).toEqualTypeOf<Promise<any>>();
  return { game, any };
}

test("the state and the methods of a thread have the types that were given", () => {
  type Typed = ReturnType<typeof uses>["game"];
  expectTypeOf<Typed["state"]>().toEqualTypeOf<Readonly<Game> | undefined>();
  expectTypeOf<Typed["initialState"]>().toEqualTypeOf<Readonly<Game> | undefined>();
  expectTypeOf<Typed["rpc"]["addPlayer"]>().toEqualTypeOf<(name: string) => Promise<number>>();
  expectTypeOf<Typed["rpc"]["add_player"]>().toEqualTypeOf<(name: string) => Promise<number>>();
  expectTypeOf<Typed["rpc"]["reset"]>().toEqualTypeOf<() => Promise<void>>();
  expectTypeOf<Parameters<Typed["edit"]>[0]>().toEqualTypeOf<(draft: Game) => unknown>();
  expectTypeOf<ReturnType<typeof useThreadState<Game, number>>>().toEqualTypeOf<number>();
  expectTypeOf<ReturnType<typeof useRpc<Game, GameRpcs, "add_player">>["data"]>().toEqualTypeOf<number | undefined>();
});

interface Nested {
  cards: { tags: string[] }[];
  pair: [Card, number];
  byName: Record<string, Card>;
  own?: Card | null;
}

// Only looked at by the type checker.
function changesNothing(room: ThreadClient<Nested>, select: typeof useThreadState<Nested, unknown>) {
  const state = room.state!;
  // @ts-expect-error: the state is readonly.
  state.pair = state.pair;
  // @ts-expect-error: so is what is in it.
  state.cards[0]!.tags.push("x");
  // @ts-expect-error: an element of a tuple, too.
  state.pair[0].title = "x";
  // @ts-expect-error: and of a record.
  delete state.byName["a"];
  // @ts-expect-error: what was confirmed as well.
  room.confirmed!.own = null;
  void room.set((nested) => {
    // @ts-expect-error: and what `set` hands over.
    nested.cards = [];
    return { ...nested, cards: [...nested.cards, { tags: ["a"] }] };
  });
  // @ts-expect-error: and what a selector is given.
  select(room, (nested) => (nested!.cards.length = 0));
  void room.edit((draft) => draft.cards[0]!.tags.push("x"));
  void room.waitFor((nested) => nested.pair[1] > 0).then((nested) => void room.set(nested));
  return state;
}

test("what is handed out is readonly at every depth, and a draft is not", () => {
  type Handed = ReturnType<typeof changesNothing>;
  expectTypeOf<Handed["cards"]>().toEqualTypeOf<readonly { readonly tags: readonly string[] }[]>();
  expectTypeOf<Handed["pair"]>().toEqualTypeOf<readonly [Readonly<Card>, number]>();
});

test("without types a client takes any state and any method", () => {
  type Untyped = ReturnType<typeof uses>["any"];
  expectTypeOf<Untyped["state"]>().toBeAny();
  expectTypeOf<Parameters<Untyped["call"]>[0]>().toEqualTypeOf<string>();
});

// Only looked at by the type checker.
function usesGenerated(room: ThreadClient<Game, GeneratedRpcs>) {
  // @ts-expect-error: what is streamed is counted by a number.
  void room.stream("a-tail", "three");
  // @ts-expect-error: there is no such method.
  void room.callWith("stay", { kwargs: { to: 1 } });
  // @ts-expect-error: `rpc.newGame` would call new_game.
  void room.rpc.newGame();
  // @ts-expect-error: `rpc.toString` is that of any object.
  void room.rpc.toString("x");
  // @ts-expect-error: what tools call on anything calls no method.
  void room.rpc.inspect("x");
  // @ts-expect-error: `rpc.add2nd` would call add2nd.
  void room.rpc.add2nd();
  return {
    chunks: room.stream("a-tail", 3),
    ofAnything: room.stream("by_hand", 1),
    moved: room.callWith("move", { kwargs: { to: 1 } }),
    ended: room.call("a-tail"),
    cleared: room.rpc.clear(),
    called: room.call("newGame"),
    underscored: room.rpc.add_2nd(),
    inspected: room.call("inspect", "x"),
    named: room.rpc.to_string("x"),
  };
}

test("what plait types writes gives methods, streams and calls by name their types", () => {
  type Made = ReturnType<typeof usesGenerated>;
  type ChunkOfStream<Stream> = Stream extends AsyncIterable<infer Chunk> ? Chunk : never;
  expectTypeOf<ChunkOfStream<Made["chunks"]>>().toEqualTypeOf<Card>();
  expectTypeOf<ChunkOfStream<Made["ofAnything"]>>().toBeUnknown();
  expectTypeOf<Made["moved"]>().toEqualTypeOf<Promise<Card | null>>();
  expectTypeOf<Made["ended"]>().toEqualTypeOf<Promise<unknown>>();
  expectTypeOf<Made["cleared"]>().toEqualTypeOf<Promise<void>>();
  expectTypeOf<Made["called"]>().toEqualTypeOf<Promise<number>>();
  expectTypeOf<Made["underscored"]>().toEqualTypeOf<Promise<number>>();
  expectTypeOf<Parameters<ThreadClient<Game, GeneratedRpcs>["rpc"]["addCard"]>>().toEqualTypeOf<
    [card: Card, function_?: number]
  >();
});

/** As `plait types` writes the agents of a thread. */
interface GeneratedRuns {
  add_card(card: Card): number;
  "run:count"(input: number): AsyncIterable<Card>;
  "run:interrupt"(message?: unknown): boolean;
  "run:support"(input: { message: string }): string;
  "run:tidy"(): void;
}

// Only looked at by the type checker.
function runs(
  room: ThreadClient<Game, GeneratedRuns>,
  any: ThreadClient,
  use: typeof useRpc<Game, GeneratedRuns, "run:support">,
) {
  // @ts-expect-error: add_card is no agent.
  void room.run("add_card", { title: "x" });
  // @ts-expect-error: and so is this, which has a method of its own.
  void room.run("interrupt");
  // @ts-expect-error: the input is missing.
  void room.run("support");
  // @ts-expect-error: the input is of another type.
  void room.run("support", "hi");
  void room.run("tidy");
  return {
    answer: room.run("support", { message: "hi" }),
    all: room.run("count", 3),
    stream: room.runStream("count", 3),
    anything: any.run("support", 1),
    used: use(room, "run:support"),
  };
}

test("an agent is run with its input, and gives its output or what it yields", () => {
  type Made = ReturnType<typeof runs>;
  expectTypeOf<Made["answer"]>().toEqualTypeOf<Promise<string | Interruption>>();
  expectTypeOf<Made["all"]>().toEqualTypeOf<Promise<(Card | Interruption)[]>>();
  expectTypeOf<Made["stream"]>().toEqualTypeOf<RpcStream<Card | Interruption, undefined>>();
  expectTypeOf<Made["anything"]>().toEqualTypeOf<Promise<any>>();
  expectTypeOf<Made["used"]["data"]>().toEqualTypeOf<string | undefined>();
});

test("without types a stream gives anything", () => {
  expectTypeOf<ReturnType<ThreadClient["stream"]>>().toEqualTypeOf<RpcStream<any, any>>();
});

// Only looked at by the type checker.
function listens(
  room: ThreadClient<Game, GeneratedRpcs, GeneratedEvents>,
  any: ThreadClient,
  useEvent: typeof useThreadEvent,
  use: typeof useThread<Game, GeneratedRpcs, GeneratedEvents>,
  useState: typeof useThreadState,
) {
  room.onEvent("goal", (card) => expectTypeOf(card).toEqualTypeOf<Card>());
  room.onEvent("half-time", (data) => expectTypeOf(data).toEqualTypeOf<null>());
  // @ts-expect-error: nothing is emitted under this name.
  room.onEvent("goals", () => undefined);
  // @ts-expect-error: a goal is a card.
  room.onEvent("goal", (by: string) => by);
  useEvent(use({ kind: "game-room", name: "a" }), "goal", (card) => expectTypeOf(card).toEqualTypeOf<Card>());
  // @ts-expect-error: nothing is emitted under this name.
  useEvent(room, "goals", () => undefined);
  expectTypeOf(useState(room)).toEqualTypeOf<Readonly<Game> | undefined>();
  any.onEvent("anything", (data) => expectTypeOf(data).toBeAny());
  useEvent(any, "anything", (data) => expectTypeOf(data).toBeAny());
}

test("what a thread emits has the types that were given", () => {
  expectTypeOf(listens).returns.toEqualTypeOf<void>();
});

interface QueryRpcs {
  cards: { query(owner: string, limit?: number): Card[] };
  count: { query(): number };
  add(text: string): void;
}

// Only looked at by the type checker.
function queries(room: ThreadClient<Game, QueryRpcs>, any: ThreadClient, use: typeof useQuery) {
  // @ts-expect-error: there is no such query.
  room.query("players", [], () => undefined);
  // @ts-expect-error: it is not a query.
  room.query("add", ["text"], () => undefined);
  // @ts-expect-error: a query is not called.
  void room.call("count");
  // @ts-expect-error: a query is not called.
  void room.rpc.count();
  // @ts-expect-error: the owner is missing.
  room.query("cards", [], () => undefined);
  // @ts-expect-error: the result is frozen.
  room.query("cards", ["Ada"], (cards) => cards?.sort());
  room.query("cards", ["Ada", 3], (cards) => expectTypeOf(cards).toEqualTypeOf<DeepReadonly<Card[]> | undefined>());
  any.query("anything", [1, "two"], (rows) => expectTypeOf(rows).toEqualTypeOf<any>());
  // @ts-expect-error: the owner is missing.
  use(room, "cards");
  return {
    shown: use(room, "cards", "Ada"),
    count: use(room, { query: "count" }),
    suspended: use(room, { query: "cards", suspense: true }, "Ada"),
    perhaps: use(room, { query: "cards", suspense: Boolean(any) }, "Ada"),
  };
}

test("the result of a query has the type that its method returns, and is there for a suspended component", () => {
  type Used = ReturnType<typeof queries>;
  type Cards = DeepReadonly<Card[]>;
  expectTypeOf<Used["shown"]["data"]>().toEqualTypeOf<Cards | undefined>();
  expectTypeOf<Used["count"]["data"]>().toEqualTypeOf<number | undefined>();
  expectTypeOf<Used["suspended"]["data"]>().toEqualTypeOf<Cards>();
  expectTypeOf<Used["perhaps"]["data"]>().toEqualTypeOf<Cards | undefined>();
});
