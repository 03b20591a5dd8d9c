// @vitest-environment jsdom
/** `useQuery`: the result of a query while a component is mounted. */

import { Component, StrictMode, Suspense, useState } from "react";
import type { ReactNode } from "react";
import { createRoot } from "react-dom/client";
import type { Root } from "react-dom/client";
import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { ThreadClient } from "../src/client.js";
import type { PlaitError } from "../src/errors.js";
import { useQuery, useThread } from "../src/react.js";
import { SharedClients } from "../src/shared.js";
import type { Peer } from "./server.js";
import { clients, server, serving } from "./serving.js";

serving();

interface ShopRpcs {
  open_orders: { query(customer: string): string[] };
}

let root: Root;
let element: HTMLElement;

const shared = vi.spyOn(SharedClients.prototype, "get");

beforeEach(() => {
  element = document.body.appendChild(document.createElement("main"));
  root = createRoot(element);
});

afterEach(() => {
  root.unmount();
  for (const { value } of shared.mock.results) void (value as ThreadClient).close();
  shared.mockClear();
});

async function until(text: string): Promise<void> {
  await vi.waitFor(() => expect(element.textContent).toBe(text), { timeout: 5_000 });
}

function useShop(): ThreadClient<unknown, ShopRpcs> {
  return useThread<unknown, ShopRpcs>({ host: server.host, kind: "shop", name: "a" });
}

function Orders({ customer = "c1" }: { customer?: string }): ReactNode {
  const { data, error, at } = useQuery(useShop(), "open_orders", customer);
  return `${data?.join("+")} ${error?.code} ${at};`;
}

const options = { query: "open_orders", suspense: true } as const;

function Suspended({ customer = "c1" }: { customer?: string }): ReactNode {
  const { data, error } = useQuery(useShop(), options, customer);
  return `${data.join("+")} ${error?.code};`;
}

class Boundary extends Component<{ children: ReactNode }, { error: PlaitError | undefined }> {
  override state: { error: PlaitError | undefined } = { error: undefined };

  static getDerivedStateFromError(error: PlaitError): { error: PlaitError } {
    return { error };
  }

  override render(): ReactNode {
    const { error } = this.state;
    const retry = () => this.setState({ error: undefined });
    return error ? <button onClick={retry}>{`failed: ${error.code}`}</button> : this.props.children;
  }
}

async function joined(): Promise<Peer> {
  const peer = await server.peer();
  await peer.join({ version: 1, state: null });
  return peer;
}

/** Takes the next call, which must follow the orders of a customer; returns a function that answers it. */
async function followed(peer: Peer, customer = "c1") {
  const { ref, args, have } = await peer.take("call");
  expect([args, have]).toEqual([[customer], ""]);
  const answer = (value: object) =>
    peer.send({ type: "result", ref, done: false, value: { at: 1, tag: "t", ...value } } as never);
  return { ref, answer };
}

const FAILED = { error: { code: "sql_error", message: "no such table" } };

test("components share one call of the same query, also under StrictMode, until the last one is unmounted", async () => {
  root.render(
    <StrictMode>
      <Orders />
      <Orders />
    </StrictMode>,
  );
  const peer = await joined();
  const { ref, answer } = await followed(peer);
  await until("undefined undefined undefined;undefined undefined undefined;");
  answer({ at: 3, rows: ["tea"] });
  await until("tea undefined 3;tea undefined 3;");
  root.render(
    <StrictMode>
      <Orders />
    </StrictMode>,
  );
  answer({ at: 4, tag: "t2", ops: [{ op: "add", path: "/-", value: "ink" }] });
  await until("tea+ink undefined 4;");
  answer({ at: 5, ...FAILED });
  await until("tea+ink sql_error 4;");
  root.render(null);
  expect(await peer.take("cancel")).toEqual({ type: "cancel", ref });
  expect(peer.types).toEqual(["join", "call", "cancel"]);
});

test("other arguments never show the result of these, not in one render", async () => {
  const renders: string[] = [];
  let setCustomer: (customer: string) => void = () => undefined;
  function Page(): ReactNode {
    const [customer, set] = useState("c1");
    setCustomer = set;
    const { data } = useQuery(useShop(), "open_orders", customer);
    renders.push(`${customer} ${data?.join()}`);
    return data?.join();
  }
  root.render(<Page />);
  const peer = await joined();
  const first = await followed(peer);
  first.answer({ rows: ["tea"] });
  await until("tea");
  setCustomer("c2");
  const second = await followed(peer, "c2");
  expect((await peer.take("cancel")).ref).toBe(first.ref);
  second.answer({ rows: ["ink"] });
  await until("ink");
  expect([...new Set(renders)]).toEqual(["c1 undefined", "c1 tea", "c2 undefined", "c2 ink"]);
});

test("a client that no component shares is followed, too", async () => {
  const shop = new ThreadClient<unknown, ShopRpcs>({ host: server.host, kind: "shop", name: "a" });
  clients.push(shop);
  function Page(): ReactNode {
    return useQuery(shop, { query: "open_orders" }, "c1").data?.join();
  }
  root.render(<Page />);
  const peer = await joined();
  (await followed(peer)).answer({ rows: ["tea"] });
  await until("tea");
});

test("a query is followed again when its component is mounted again", async () => {
  root.render(<Orders key="first" />);
  const peer = await joined();
  const first = await followed(peer);
  first.answer({ rows: ["tea"] });
  await until("tea undefined 1;");
  root.render(<Orders key="second" />);
  await until("tea undefined 1;");
  root.render(null);
  expect((await peer.take("cancel")).ref).toBe(first.ref);
  root.render(<Orders />);
  await until("undefined undefined undefined;");
  (await followed(peer)).answer({ rows: ["ink"] });
  await until("ink undefined 1;");
});

test.each([false, true])("a component is suspended until there is a result; StrictMode: %s", async (isStrict) => {
  let renders = 0;
  function Counted(): ReactNode {
    renders++;
    return <Suspended />;
  }
  const page = (
    <Suspense fallback="waiting">
      <Counted />
      <Suspended />
    </Suspense>
  );
  root.render(isStrict ? <StrictMode>{page}</StrictMode> : page);
  const peer = await joined();
  const { ref, answer } = await followed(peer);
  await until("waiting");
  answer({ rows: ["tea"] });
  await until("tea undefined;tea undefined;");
  answer(FAILED);
  await until("tea sql_error;tea sql_error;");
  expect(renders).toBeLessThan(10);
  root.render(null);
  expect((await peer.take("cancel")).ref).toBe(ref);
  expect(peer.types).toEqual(["join", "call", "cancel"]);
});

test("a component that is suspended again for other arguments shows only their result", async () => {
  const page = (customer: string) => (
    <Suspense fallback="waiting">
      <Suspended customer={customer} />
    </Suspense>
  );
  root.render(page("c1"));
  const peer = await joined();
  const first = await followed(peer);
  first.answer({ rows: ["tea"] });
  await until("tea undefined;");
  root.render(page("c2"));
  const second = await followed(peer, "c2");
  await until("waiting");
  second.answer({ rows: ["ink"] });
  await until("ink undefined;");
  expect((await peer.take("cancel")).ref).toBe(first.ref);
});

test("an error before the first result is thrown to the boundary, and soon after it another attempt calls again", async () => {
  root.render(
    <Boundary>
      <Suspense fallback="waiting">
        <Suspended />
      </Suspense>
    </Boundary>,
  );
  const peer = await joined();
  const first = await followed(peer);
  first.answer(FAILED);
  await until("failed: sql_error");
  expect((await peer.take("cancel")).ref).toBe(first.ref);
  element.querySelector("button")?.click();
  const second = await followed(peer);
  await until("waiting");
  second.answer({ rows: ["tea"] });
  await until("tea undefined;");
});

test("a refused query is thrown to the boundary", async () => {
  root.render(
    <Boundary>
      <Suspense fallback="waiting">
        <Suspended />
      </Suspense>
    </Boundary>,
  );
  const peer = await joined();
  const { ref } = await followed(peer);
  peer.send({ type: "error", ref, code: "forbidden", message: "no" });
  await until("failed: forbidden");
});

test("a query of a closed client is thrown to the boundary", async () => {
  const shop = new ThreadClient<unknown, ShopRpcs>({ host: server.host, kind: "shop", name: "a", connect: false });
  await shop.close();
  function Page(): ReactNode {
    return useQuery(shop, options, "c1").data.join();
  }
  root.render(
    <Boundary>
      <Suspense fallback="waiting">
        <Page />
      </Suspense>
    </Boundary>,
  );
  await until("failed: closed");
});
