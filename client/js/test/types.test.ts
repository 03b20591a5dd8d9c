import { expectTypeOf, test } from "vitest";

import type { ThreadClient } from "../src/index.js";
import type { useRpc, useThreadState } from "../src/react.js";

interface Game {
  score: number;
}

interface GameRpcs {
  add_player(name: string): number;
  reset(): Promise<void>;
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
  expectTypeOf<Typed["state"]>().toEqualTypeOf<Game | undefined>();
  expectTypeOf<Typed["rpc"]["addPlayer"]>().toEqualTypeOf<(name: string) => Promise<number>>();
  expectTypeOf<Typed["rpc"]["add_player"]>().toEqualTypeOf<(name: string) => Promise<number>>();
  expectTypeOf<Typed["rpc"]["reset"]>().toEqualTypeOf<() => Promise<void>>();
  expectTypeOf<Parameters<Typed["edit"]>[0]>().toEqualTypeOf<(draft: Game) => unknown>();
  expectTypeOf<ReturnType<typeof useThreadState<Game, number>>>().toEqualTypeOf<number>();
  expectTypeOf<ReturnType<typeof useRpc<Game, GameRpcs, "add_player">>["data"]>().toEqualTypeOf<number | undefined>();
});

test("without types a client takes any state and any method", () => {
  type Untyped = ReturnType<typeof uses>["any"];
  expectTypeOf<Untyped["state"]>().toBeAny();
  expectTypeOf<Parameters<Untyped["call"]>[0]>().toEqualTypeOf<string>();
});
