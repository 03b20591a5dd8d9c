// @vitest-environment jsdom
/** `useRpc` with a recipe: what a call will do is rendered at once. */

import { useState } from "react";
import type { ReactNode } from "react";
import { createRoot } from "react-dom/client";
import type { Root } from "react-dom/client";
import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { optimistic } from "../src/optimistic.js";
import type { OptimisticPart } from "../src/parts.js";
import { useRpc, useThread, useThreadState } from "../src/react.js";
import { server, serving } from "./serving.js";

serving();

type Basket = { items: string[] };

interface BasketRpcs {
  add(text: string): void;
}

let root: Root;
let element: HTMLElement;
let add: (text: string) => Promise<void>;
let setMark: (mark: string) => void;

beforeEach(() => {
  element = document.body.appendChild(document.createElement("main"));
  root = createRoot(element);
});

afterEach(() => root.unmount());

async function until(text: string): Promise<void> {
  await vi.waitFor(() => expect(element.textContent).toBe(text), { timeout: 5_000 });
}

function Items({ part }: { part?: OptimisticPart }): ReactNode {
  const room = useThread<Basket, BasketRpcs>({ host: server.host, kind: "basket", name: "a", optimistic: part });
  const items = useThreadState(room, (state) => state?.items);
  const [mark, change] = useState("?");
  const { call, error } = useRpc(room, "add", { optimistic: (draft, text) => void draft.items.push(text + mark) });
  [add, setMark] = [call, change];
  return `${items?.join("+")} ${error?.code} ${mark}`;
}

test("the recipe of the last render shows what a call will do, until its first change", async () => {
  root.render(<Items part={optimistic} />);
  const peer = await server.peer();
  await peer.join({ state: { items: ["tea"] } });
  await until("tea undefined ?");
  const before = add;
  setMark("!");
  await until("tea undefined !");
  expect(add).toBe(before);
  const first = add("ink");
  await until("tea+ink! undefined !");
  const { ref, args } = await peer.take("call");
  expect(args).toEqual(["ink"]);
  peer.send({ type: "made", ref, version: 2 });
  peer.send({ type: "change", version: 2, ops: [{ op: "add", path: "/items/-", value: "ink" }], source: "server" });
  await until("tea+ink undefined !");
  peer.send({ type: "result", ref, done: true });
  await first;
  void add("pen");
  await until("tea+ink+pen! undefined !");
  const next = await peer.take("call");
  peer.send({ type: "error", ref: next.ref, code: "rejected", message: "no" });
  await until("tea+ink rejected !");
});

test("a recipe without the option is an error", async () => {
  root.render(<Items />);
  const peer = await server.peer();
  await peer.join({ state: { items: ["tea"] } });
  await until("tea undefined ?");
  await expect(add("ink")).rejects.toThrow("optimistic needs the option optimistic");
  await until("tea error ?");
});
