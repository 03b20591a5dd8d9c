/** What optimistic calls show, and until when. */

import { expect, test } from "vitest";
import { WebSocket } from "ws";

import { ThreadClient, optimistic, text, undo } from "../src/index.js";
import type { ThreadOptions } from "../src/index.js";
import type { Joined } from "../src/protocol.js";
import type { Peer } from "./server.js";
import { clients, server, serving } from "./serving.js";

serving();

type Item = {
  id: string;
  text: string;
  done?: boolean;
};

type Basket = {
  items: Item[];
};

interface BasketRpcs {
  add(text: string): string;
  check(id: string, done?: boolean): void;
}

type Page = ThreadClient<Basket, BasketRpcs>;
type Options = Partial<ThreadOptions<Basket>>;

const TEA: Item = { id: "t", text: "tea" };
const INK: Item = { id: "i", text: "ink" };

function newPage(options: Options = {}): Page {
  const page: Page = new ThreadClient<Basket, BasketRpcs>({
    host: server.host,
    kind: "basket",
    name: "a",
    WebSocket,
    optimistic,
    ...options,
  });
  clients.push(page);
  return page;
}

async function joined(options: Options = {}, frame: Partial<Joined> = {}) {
  const page = newPage(options);
  const peer = await server.peer();
  await peer.join({ state: { items: [{ ...TEA }] }, ...frame });
  await page.ready;
  return [page, peer] as const;
}

function texts(page: Page): string[] | undefined {
  return page.state?.items.map((item) => item.text);
}

/** Calls `add`, and shows the item. */
function add(page: Page, text: string): Promise<string> {
  return page.call("add", text, { optimistic: (draft) => void draft.items.push({ id: "local", text }) });
}

function added(item: Item, version: number, index: number | string = "-") {
  const op = { op: "add", path: `/items/${index}`, value: { ...item } } as const;
  return { type: "change", version, ops: [op], source: "server" } as const;
}

/** Waits until the page has received everything that was sent to it. */
async function told(page: Page, peer: Peer): Promise<void> {
  const heard = new Promise((resolve) => page.onEvent("heard", resolve));
  peer.send({ type: "event", name: "heard", data: null });
  await heard;
}

test("a call is shown at once, and until its first change comes", async () => {
  const [page, peer] = await joined();
  const seen: unknown[] = [];
  page.subscribe(() => seen.push(texts(page)));
  const call = add(page, "ink");
  expect(texts(page)).toEqual(["tea", "ink"]);
  expect(page.confirmed).toEqual({ items: [TEA] });
  const { ref, ...frame } = await peer.take("call");
  expect(frame).toEqual({ type: "call", method: "add", args: ["ink"], optimistic: true });
  peer.send({ type: "made", ref, version: 2 });
  peer.send(added(INK, 2));
  peer.send(added({ ...INK, id: "j" }, 3));
  peer.send({ type: "result", ref, done: true, value: "i" });
  expect(await call).toBe("i");
  expect(page.state).toEqual({ items: [TEA, INK, { ...INK, id: "j" }] });
  expect(seen.filter((each) => JSON.stringify(each) !== '["tea","ink"]')).toEqual([["tea", "ink", "ink"]]);
});

test("the recipe is called again for each state before the first change", async () => {
  const [page, peer] = await joined();
  const call = add(page, "ink");
  const { ref } = await peer.take("call");
  peer.send(added({ id: "p", text: "pen" }, 2));
  await told(page, peer);
  expect(texts(page)).toEqual(["tea", "pen", "ink"]);
  const { state } = page;
  await told(page, peer);
  expect(page.state).toBe(state);
  peer.send({ type: "made", ref, version: 4 });
  peer.send(added({ id: "c", text: "cup" }, 3, 0));
  await told(page, peer);
  expect(texts(page)).toEqual(["cup", "tea", "pen", "ink"]);
  // The element that is shown stays the same object.
  expect(page.state?.items[1]).toBe(state?.items[0]);
  peer.send({
    type: "changes",
    from: 3,
    to: 5,
    ops: [...added(INK, 4).ops, ...added({ id: "m", text: "mug" }, 5).ops],
  });
  await told(page, peer);
  expect(texts(page)).toEqual(["cup", "tea", "pen", "ink", "mug"]);
  peer.send({ type: "result", ref, done: true, value: "i" });
  await call;
  expect(texts(page)).toEqual(["cup", "tea", "pen", "ink", "mug"]);
});

test("a call that changes nothing is shown until its result", async () => {
  const [page, peer] = await joined();
  const seen: unknown[] = [];
  const call = add(page, "ink");
  const { ref } = await peer.take("call");
  page.subscribe(() => seen.push(texts(page)));
  peer.send({ type: "result", ref, done: true, value: "" });
  await call;
  expect(seen).toEqual([["tea"]]);
});

test("what a refused call shows is taken back, and others stay", async () => {
  const [page, peer] = await joined();
  const [first, second] = [add(page, "ink"), add(page, "pen")];
  expect(texts(page)).toEqual(["tea", "ink", "pen"]);
  const { ref } = await peer.take("call");
  peer.send({ type: "error", ref, code: "rejected", message: "no" });
  await expect(first).rejects.toMatchObject({ code: "rejected" });
  expect(texts(page)).toEqual(["tea", "pen"]);
  const next = await peer.take("call");
  peer.send({ type: "made", ref: next.ref, version: 2 });
  peer.send(added({ id: "p", text: "pen" }, 2));
  peer.send({ type: "result", ref: next.ref, done: true, value: "p" });
  await second;
  expect(texts(page)).toEqual(["tea", "pen"]);
});

test("what a call shows is taken back with the connection, and a call that was not sent stays shown", async () => {
  const [page, peer] = await joined();
  const lost = add(page, "ink");
  await peer.take("call");
  peer.drop();
  await expect(lost).rejects.toMatchObject({ code: "disconnected" });
  expect(texts(page)).toEqual(["tea"]);
  const call = add(page, "pen");
  expect(texts(page)).toEqual(["tea", "pen"]);
  const again = await server.peer();
  await again.join({ version: 2, ops: added(INK, 2).ops });
  const { ref } = await again.take("call");
  expect(texts(page)).toEqual(["tea", "ink", "pen"]);
  again.send({ type: "made", ref, version: 3 });
  again.send(added({ id: "p", text: "pen" }, 3));
  again.send({ type: "result", ref, done: true, value: "p" });
  await call;
  expect(texts(page)).toEqual(["tea", "ink", "pen"]);
});

test("a call that is made before the first state is shown on it", async () => {
  const page = newPage({ initialState: { items: [INK] } });
  const call = add(page, "pen");
  const peer = await server.peer();
  await peer.join({ state: { items: [TEA] } });
  const { ref } = await peer.take("call");
  expect(texts(page)).toEqual(["tea", "pen"]);
  peer.send({ type: "result", ref, done: true, value: "" });
  await call;
  expect(texts(page)).toEqual(["tea"]);
});

test("a call that is cancelled, or whose client is closed, shows nothing more", async () => {
  const [page, peer] = await joined();
  const cancelling = new AbortController();
  const recipe = (draft: Basket) => void draft.items.push(INK);
  const call = page.callWith("add", { args: ["ink"], signal: cancelling.signal, optimistic: recipe });
  await peer.take("call");
  cancelling.abort();
  await expect(call).rejects.toThrow("aborted");
  expect(texts(page)).toEqual(["tea"]);
  expect(await peer.take("cancel")).toBeDefined();
  peer.drop();
  await peer.closed.take();
  const other = add(page, "pen");
  expect(texts(page)).toEqual(["tea", "pen"]);
  void page.close();
  await expect(other).rejects.toMatchObject({ code: "closed" });
  expect(texts(page)).toEqual(["tea"]);
});

test("edits are made on what is shown, and pushed as edits of what the server knows", async () => {
  const [page, peer] = await joined({ text });
  const insert = (draft: Basket) => void draft.items.unshift({ id: "local", text: "ink" });
  void page.call("add", "ink", { optimistic: insert }).catch(() => undefined);
  await peer.take("call");
  void page.update("/items/1/text", "green tea");
  expect(texts(page)).toEqual(["ink", "green tea"]);
  expect((await peer.take("push")).ops).toEqual([{ op: "replace", path: "/items/0/text", value: "green tea" }]);
  void page.edit((draft) => void (draft.items[1]!.done = true));
  expect((await peer.take("push")).ops).toEqual([{ op: "add", path: "/items/0/done", value: true }]);
  void page.splice("/items/1/text", 9, 0, "!");
  expect((await peer.take("push")).ops).toEqual([{ op: "splice", path: "/items/0/text", at: 9, insert: "!" }]);
  expect(texts(page)).toEqual(["ink", "green tea!"]);
});

test("an edit of what only the call shows is refused", async () => {
  const [page, peer] = await joined({ text });
  void add(page, "ink").catch(() => undefined);
  await peer.take("call");
  await expect(page.update("/items/1/text", "pink")).rejects.toMatchObject({ code: "bad_state" });
  await expect(page.splice("/items/1/text", 0, 0, "p")).rejects.toMatchObject({ code: "bad_state" });
  expect(page.state).toEqual({ items: [TEA, { id: "local", text: "ink" }] });
  expect(page.pending).toBe(0);
});

test("own changes are undone beside what a call shows", async () => {
  const [page, peer] = await joined({ undo });
  void page.update("/items/0/text", "green tea");
  const insert = (draft: Basket) => void draft.items.unshift({ id: "local", text: "ink" });
  void page.call("add", "ink", { optimistic: insert }).catch(() => undefined);
  const seen: unknown[] = [];
  page.subscribe(() => seen.push(texts(page)));
  expect(page.canUndo()).toBe(true);
  void page.undo();
  expect(texts(page)).toEqual(["ink", "tea"]);
  expect(seen).toEqual([["ink", "tea"]]);
  await peer.take("push");
  await peer.take("call");
  expect((await peer.take("push")).ops).toEqual([{ op: "replace", path: "/items/0/text", value: "tea" }]);
});

test("a bound text is told what is shown", async () => {
  const [page, peer] = await joined({ text });
  const changes: unknown[] = [];
  page.onText("/items/0/text", (change) => changes.push(change.text));
  const call = page.call("check", "t", true, { optimistic: (draft) => void (draft.items[0]!.text = "tea, done") });
  const { ref } = await peer.take("call");
  expect(changes).toEqual(["tea, done"]);
  peer.send({ type: "made", ref, version: 2 });
  peer.send({
    type: "change",
    version: 2,
    ops: [{ op: "replace", path: "/items/0/text", value: "tea, done" }],
    source: "server",
  });
  peer.send({ type: "result", ref, done: true });
  await call;
  expect(changes).toEqual(["tea, done"]);
});

test("a call whose recipe throws is not made", async () => {
  const [page, peer] = await joined();
  const wrong = page.call("check", "x", true, { optimistic: (draft) => void (draft.items[7]!.done = true) });
  await expect(wrong).rejects.toThrow(TypeError);
  const late = page.call("check", "x", true, { optimistic: (async () => undefined) as never });
  await expect(late).rejects.toThrow("cannot be async");
  void page.call("add", "ink").catch(() => undefined);
  expect(await peer.take("call")).toMatchObject({ method: "add" });
  expect(texts(page)).toEqual(["tea"]);
});

test("a call shows nothing on a state for which its recipe throws", async () => {
  const [page, peer] = await joined({}, { state: { items: [TEA, INK] } });
  const call = page.call("check", "i", true, { optimistic: (draft) => void (draft.items[1]!.done = true) });
  const { ref } = await peer.take("call");
  expect(page.state?.items[1]).toEqual({ ...INK, done: true });
  peer.send({ type: "change", version: 2, ops: [{ op: "remove", path: "/items/1" }], source: "server" });
  await told(page, peer);
  expect(page.state).toEqual({ items: [TEA] });
  peer.send({ type: "change", version: 3, ops: added(INK, 3).ops });
  await told(page, peer);
  expect(page.state?.items[1]).toEqual({ ...INK, done: true });
  peer.send({ type: "result", ref, done: true });
  await call;
  expect(page.state?.items[1]).toEqual(INK);
});

test("without the part, a recipe is a clear error", async () => {
  const [page, peer] = await joined({ optimistic: undefined });
  const needed = "optimistic needs the option optimistic, which plait-client exports";
  await expect(add(page, "ink")).rejects.toThrow(needed);
  const recipe = () => undefined;
  await expect(page.callWith("add", { args: ["ink"], optimistic: recipe })).rejects.toThrow(needed);
  await expect(page.rpc.add(...(["ink", { optimistic: recipe }] as unknown as [string]))).rejects.toThrow(needed);
  void page.callWith("add", { args: ["pen"], optimistic: undefined }).catch(() => undefined);
  expect(await peer.take("call")).toEqual({ type: "call", ref: 1, method: "add", args: ["pen"] });
});
