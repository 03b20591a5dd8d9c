/** The types of rooms, by the kinds that `plait types` adds to `Kinds`. */

import { expectTypeOf, test } from "vitest";

import type { ThreadClient } from "../src/client.js";
import type { Room, useRoom, useRpc, useStream, useText, useThreadState } from "../src/react.js";

interface CardState {
  n: number;
  items: { id: string; text: string }[];
}

interface CardRpcs {
  add(text: string): number;
  talk(): AsyncIterable<string>;
}

declare module "../src/kinds.js" {
  interface Kinds {
    card: { state: CardState; rpcs: CardRpcs; events: { cheer: string } };
  }
}

// Only looked at by the type checker.
function uses(
  find: typeof useRoom,
  stateOf: typeof useThreadState,
  rpc: typeof useRpc,
  stream: typeof useStream,
  text: typeof useText,
  render: (props: Parameters<typeof Room<"card">>[0]) => void,
) {
  const room = find("card");
  const n: number = room.state.n;
  const items = stateOf(room, (state) => state.items);
  void room.edit((draft) => void draft.items.push({ id: "x", text: "milk" }));
  void rpc(room, "add").call("milk");
  void text(room, "/items/0/text");
  render({ kind: "card", name: null, initialState: { n: 1, items: [] } });
  const withoutState: ThreadClient<CardState, CardRpcs, { cheer: string }> = room;
  // @ts-expect-error: there is no such kind.
  find("crad");
  // @ts-expect-error: there is no such member.
  room.state.nn;
  // @ts-expect-error: the state is readonly.
  room.state.n = 3;
  // @ts-expect-error: the items have another type.
  void room.edit((draft) => void draft.items.push("milk"));
  // @ts-expect-error: there is no such method.
  rpc(room, "adds");
  // @ts-expect-error: the argument has another type.
  void rpc(room, "add").call(3);
  // @ts-expect-error: the initial state has another type.
  render({ kind: "card", name: "a", initialState: { n: "1" } });
  // @ts-expect-error: a client may have no state yet.
  withoutState.state.n;
  return {
    n,
    items,
    whole: stateOf(room),
    maybe: stateOf(withoutState),
    chunks: stream(room, "talk").chunks,
    any: find(),
  };
}

test("a room of a kind has its types, and always a state", () => {
  type Types = ReturnType<typeof uses>;
  expectTypeOf<Types["items"]>().toEqualTypeOf<readonly { readonly id: string; readonly text: string }[]>();
  expectTypeOf<Types["whole"]["n"]>().toEqualTypeOf<number>();
  expectTypeOf<NonNullable<Types["maybe"]>["n"]>().toEqualTypeOf<number>();
  expectTypeOf<undefined>().toExtend<Types["maybe"]>();
  expectTypeOf<Types["chunks"]>().toEqualTypeOf<readonly string[]>();
  expectTypeOf<Types["any"]["state"]>().toBeAny();
});
