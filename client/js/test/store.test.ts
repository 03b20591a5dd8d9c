// @vitest-environment jsdom
/** A client's values as stores: Svelte's contract, which Vue can use, too. */

import { effect, effectScope, onScopeDispose, shallowRef } from "@vue/reactivity";
import type { ShallowRef } from "@vue/reactivity";
import { expect, expectTypeOf, test, vi } from "vitest";

import { ThreadClient } from "../src/client.js";
import { store } from "../src/store.js";
import type { Store } from "../src/store.js";
import type { Peer } from "./server.js";
import { clients, server, serving } from "./serving.js";

serving();

interface Note {
  n: number;
  list: string[];
}

async function joined(): Promise<[ThreadClient<Note>, Peer]> {
  const room = new ThreadClient<Note>({ host: server.host, kind: "note", name: "a" });
  clients.push(room);
  return [room, await server.peer()];
}

test("a store tells its value at once, and each other value, until it is left", async () => {
  const [room, peer] = await joined();
  const [states, counts, statuses]: [unknown[], unknown[], unknown[]] = [[], [], []];
  store(room).subscribe((state) => states.push(state));
  const stop = store(room, (state) => state?.n).subscribe((n) => counts.push(n));
  store(room, (_, { status, pending }) => `${status} ${pending}`).subscribe((status) => statuses.push(status));
  expect([states, counts, statuses]).toEqual([[undefined], [undefined], ["connecting 0"]]);
  await peer.join({ state: { n: 1, list: [] } });
  await room.ready;
  void room.update("/list/-", "a");
  void room.update("/n", 2);
  stop();
  void room.update("/n", 3);
  expect(states).toEqual([
    undefined,
    { n: 1, list: [] },
    { n: 1, list: ["a"] },
    { n: 2, list: ["a"] },
    { n: 3, list: ["a"] },
  ]);
  expect(counts).toEqual([undefined, 1, 2]);
  expect(statuses).toEqual(["connecting 0", "online 0", "online 1", "online 2", "online 3"]);
});

test("a value that is another object each time is told again only if it differs by the given function", async () => {
  const [room, peer] = await joined();
  const isSame = (a: readonly string[], b: readonly string[]) => a.join() === b.join();
  const seen: unknown[] = [];
  const upper = store(room, (state) => (state?.list ?? []).map((item) => item.toUpperCase()), isSame);
  upper.subscribe((items) => seen.push(items));
  await peer.join({ state: { n: 1, list: ["a"] } });
  await room.ready;
  void room.update("/n", 2);
  void room.update("/list/-", "b");
  expect(seen).toEqual([[], ["A"], ["A", "B"]]);
});

test("a change that the first value brings about is told after it", async () => {
  const [room, peer] = await joined();
  await peer.join({ state: { n: 1, list: [] } });
  await room.ready;
  const seen: unknown[] = [];
  store(room, (state) => state?.n).subscribe((n) => {
    seen.push(n);
    if (n === 1) void room.update("/n", 2);
  });
  expect(seen).toEqual([1, 2]);
});

test("Vue shows a store by a ref that ends with its scope", async () => {
  function useStore<Value>(of: Store<Value>): Readonly<ShallowRef<Value>> {
    const value = shallowRef() as ShallowRef<Value>;
    onScopeDispose(of.subscribe((next) => (value.value = next)));
    return value;
  }
  const [room, peer] = await joined();
  const shown: unknown[] = [];
  const scope = effectScope();
  scope.run(() => {
    const n = useStore(store(room, (state) => state?.n));
    effect(() => shown.push(n.value));
  });
  await peer.join({ state: { n: 1, list: [] } });
  await vi.waitFor(() => expect(shown).toEqual([undefined, 1]));
  scope.stop();
  void room.update("/n", 2);
  expect(shown).toEqual([undefined, 1]);
});

test("the value of a store has its type, which is never undefined for a client whose state has come", () => {
  const types = (room: ThreadClient<Note>, ready: ThreadClient<Note, any, any, never>) => ({
    maybe: store(room, (state) => state?.n),
    sure: store(ready, (state, { connection }) => [state.n, connection] as const),
  });
  type Types = ReturnType<typeof types>;
  expectTypeOf<Types["maybe"]>().toEqualTypeOf<Store<number | undefined>>();
  expectTypeOf<Types["sure"]>().toEqualTypeOf<Store<readonly [number, string | undefined]>>();
});
