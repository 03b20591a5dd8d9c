// @vitest-environment jsdom
/** `useThreads`: the list of a kind while a component is mounted. */

import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import type { Root } from "react-dom/client";
import { renderToString } from "react-dom/server";
import { afterEach, beforeEach, expect, test, vi } from "vitest";

import { useThreads } from "../src/react.js";
import type { UseThreadsOptions } from "../src/react.js";

/** An event stream that a component has asked for. */
interface Stream {
  url: string;
  token: string | undefined;
  isOpen: boolean;
  send: (...names: string[]) => void;
}

let streams: Stream[] = [];
let root: Root;
let element: HTMLElement;

function answer(url: URL | string, { headers, signal }: RequestInit): Promise<Response> {
  if (signal?.aborted) return Promise.reject(signal.reason as Error);
  let send: (names: string[]) => void = () => undefined;
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      send = (names) => {
        const threads = names.map((name) => ({ name, people: 2, card: { title: name.toUpperCase() } }));
        const page = JSON.stringify({ threads, next: null, silent: 0, more: false });
        controller.enqueue(new TextEncoder().encode(`data: ${page}\n\n`));
      };
      signal?.addEventListener("abort", () => {
        stream.isOpen = false;
        controller.error(new Error("aborted"));
      });
    },
  });
  const token = (headers as Record<string, string>)["authorization"];
  const stream: Stream = { url: String(url), token, isOpen: true, send: (...names) => send(names) };
  streams.push(stream);
  return Promise.resolve(new Response(body));
}

beforeEach(() => {
  streams = [];
  vi.stubGlobal("fetch", answer);
  element = document.body.appendChild(document.createElement("main"));
  root = createRoot(element);
});

afterEach(() => {
  root.unmount();
  vi.unstubAllGlobals();
});

function Lobby({ kind, ...options }: UseThreadsOptions & { kind: string }) {
  const { threads, status } = useThreads<{ title: string }>(kind, options);
  return `${status}: ${threads.map(({ card, people }) => `${card?.title} ${people}`).join()}`;
}

function opened(): Stream[] {
  return streams.filter(({ isOpen }) => isOpen);
}

async function until(text: string): Promise<void> {
  await vi.waitFor(() => expect(element.textContent).toBe(text));
}

test("a component shows the threads of a kind, and what changes, until it is unmounted", async () => {
  root.render(
    <StrictMode>
      <Lobby kind="room" host="server.example" limit={3} />
    </StrictMode>,
  );
  await until("connecting: ");
  await vi.waitFor(() => expect(opened().length).toBe(1));
  expect(opened()[0]?.url).toBe("http://server.example/threads/room/?limit=3");
  opened()[0]?.send("a", "b");
  await until("online: A 2,B 2");
  opened()[0]?.send("b");
  await until("online: B 2");
  root.render(null);
  await vi.waitFor(() => expect(opened()).toEqual([]));
});

test("another kind or user gives another list, and shows nothing of the one before", async () => {
  root.render(<Lobby kind="room" token="ada" />);
  await vi.waitFor(() => expect(opened().length).toBe(1));
  opened()[0]?.send("a");
  await until("online: A 2");
  root.render(<Lobby kind="table" token="ada" />);
  await until("connecting: ");
  await vi.waitFor(() => expect(opened()[0]?.url).toMatch(/\/threads\/table\/$/));
  opened()[0]?.send("t");
  await until("online: T 2");
  root.render(<Lobby kind="table" token="bob" />);
  await until("connecting: ");
  await vi.waitFor(() => expect(opened().map(({ token }) => token)).toEqual(["Bearer bob"]));
});

test("a token function that is another one at each render keeps the list, and the last one is called", async () => {
  root.render(<Lobby kind="room" token={() => "first"} />);
  await vi.waitFor(() => expect(opened().length).toBe(1));
  opened()[0]?.send("a");
  await until("online: A 2");
  root.render(<Lobby kind="room" token={() => "second"} />);
  await until("online: A 2");
  expect(streams.map(({ token }) => token)).toEqual(["Bearer first"]);
});

test("a server renders an unknown list and asks for nothing", () => {
  expect(renderToString(<Lobby kind="room" host="server.example" />)).toBe("connecting: ");
  expect(streams).toEqual([]);
});

test("the user's own threads are another list", async () => {
  root.render(<Lobby kind="room" host="server.example" />);
  await vi.waitFor(() => expect(opened().length).toBe(1));
  opened()[0]?.send("all");
  await until("online: ALL 2");
  root.render(<Lobby kind="room" host="server.example" mine />);
  await until("connecting: ");
  await vi.waitFor(() =>
    expect(opened().map(({ url }) => url)).toEqual(["http://server.example/threads/room/?mine=true"]),
  );
  opened()[0]?.send("own");
  await until("online: OWN 2");
});
