// @vitest-environment jsdom
import { StrictMode, Suspense, use, useState } from "react";
import type { ReactNode } from "react";
import { flushSync } from "react-dom";
import { createRoot, hydrateRoot } from "react-dom/client";
import type { Root } from "react-dom/client";
import { renderToString } from "react-dom/server";
import { afterEach, expect, test, vi } from "vitest";

import { ThreadClient } from "../src/full.js";
import { keepIn } from "../src/keep.js";
import { messages } from "../src/messages-part.js";
import type { Joined } from "../src/protocol.js";
import { tasks } from "../src/tasks-part.js";
import { text as texts } from "../src/text-part.js";
import { undo } from "../src/undo.js";
import {
  useApprovals,
  useMessages,
  usePresence,
  useRpc,
  useTask,
  useText,
  useThread,
  useThreadEvent,
  useThreadState,
  useThreadStatus,
} from "../src/react.js";
import type { ThreadHandlers, UseThreadOptions } from "../src/react.js";
import type { AnyRpcs } from "../src/rpc.js";
import { SharedClients } from "../src/shared.js";
import { Arrivals } from "./server.js";
import type { Peer } from "./server.js";
import { clients, server, serving } from "./serving.js";
import { MemoryStorage } from "./storages.js";
import { jwt } from "./tokens.js";

interface Note {
  n: number;
  list: string[];
}

serving();

let roots: Root[] = [];

const shared = vi.spyOn(SharedClients.prototype, "get");

afterEach(() => {
  for (const root of roots.splice(0)) root.unmount();
  document.body.replaceChildren();
  // One that is released would connect again for a moment, also after its page is gone.
  for (const { value } of shared.mock.results) void (value as ThreadClient).close();
  shared.mockClear();
});

/** Renders into a new element of the page. */
function mount(node: ReactNode): { root: Root; element: HTMLElement } {
  const element = document.body.appendChild(document.createElement("main"));
  const root = createRoot(element);
  roots.push(root);
  root.render(node);
  return { root, element };
}

/** Resolves when an element's text is this. */
function text(element: HTMLElement, expected: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => {
      observer.disconnect();
      reject(new Error(`expected ${expected}, got ${element.textContent}`));
    }, 5_000);
    const look = () => {
      if (element.textContent !== expected) return;
      observer.disconnect();
      clearTimeout(timer);
      resolve();
    };
    const observer = new MutationObserver(look);
    observer.observe(element, { childList: true, subtree: true, characterData: true });
    look();
  });
}

async function peer(joined: Partial<Joined> = {}): Promise<Peer> {
  const next = await server.peer();
  await next.join({ state: { n: 1, list: ["a"] }, ...joined });
  return next;
}

function options(more: Partial<UseThreadOptions<Note>> = {}): UseThreadOptions<Note> {
  return { host: server.host, kind: "note", name: "a", ...more };
}

/** Uses a thread that ends with the test: left alone, it would outlive its components and look for a server. */
function useNote<Rpcs = AnyRpcs>(more: Partial<UseThreadOptions<Note>> = {}): ThreadClient<Note, Rpcs> {
  const thread = useThread<Note, Rpcs>(options(more));
  clients.push(thread);
  return thread;
}

function Count(more: Partial<UseThreadOptions<Note>>): ReactNode {
  const thread = useNote(more);
  return useThreadState(thread, (note) => note?.n ?? "none");
}

test("components of one thread share one socket, under StrictMode too", async () => {
  const { element } = mount(
    <StrictMode>
      <Count />
      <Count />
    </StrictMode>,
  );
  const first = await peer();
  await text(element, "11");
  first.send({ type: "change", version: 2, ops: [{ op: "replace", path: "/n", value: 2 }], source: "server" });
  await text(element, "22");
  // Whatever else had been opened would have come before this one.
  const other = mount(<Count name="b" />);
  expect((await server.peer()).url).toBe("/threads/note/b");
  expect(server.peers.waiting).toEqual([]);
  expect(other.element.textContent).toBe("none");
});

test("a component renders again only when the part that it picks is another", async () => {
  let renders = 0;
  function List(): ReactNode {
    const thread = useNote();
    renders++;
    return useThreadState(thread, (note) => note?.list)?.join() ?? "none";
  }
  const { element } = mount([<List key="list" />, <Count key="count" />]);
  const first = await peer();
  await text(element, "a1");
  const before = renders;
  first.send({ type: "change", version: 2, ops: [{ op: "replace", path: "/n", value: 2 }], source: "server" });
  await text(element, "a2");
  expect(renders).toBe(before);
  first.send({ type: "change", version: 3, ops: [{ op: "add", path: "/list/-", value: "b" }], source: "server" });
  await text(element, "a,b2");
  expect(renders).toBe(before + 1);
});

test("a selector may make something new each time, and be another function each time", async () => {
  let renders = 0;
  function Upper(): ReactNode {
    const thread = useNote();
    renders++;
    const same = (a: string[], b: string[]) => a.join() === b.join();
    return useThreadState(thread, (note) => (note?.list ?? []).map((item) => item.toUpperCase()), same).join();
  }
  const { element } = mount([<Upper key="upper" />, <Count key="count" />]);
  const first = await peer();
  await text(element, "A1");
  const before = renders;
  first.send({ type: "change", version: 2, ops: [{ op: "replace", path: "/n", value: 2 }], source: "server" });
  await text(element, "A2");
  expect(renders).toBe(before);
});

test("a change is shown at once, and stays when it is acknowledged", async () => {
  function Button(): ReactNode {
    const thread = useNote();
    const n = useThreadState(thread)?.n;
    return <button onClick={() => void thread.edit((note) => void note.n++)}>{n ?? "none"}</button>;
  }
  const { element } = mount(<Button />);
  const first = await peer();
  await text(element, "1");
  element.querySelector("button")?.click();
  await text(element, "2");
  const push = await first.take("push");
  expect(push.ops).toEqual([{ op: "replace", path: "/n", value: 2 }]);
  first.send({ type: "nack", ref: 1, code: "rejected", message: "no", version: 1 });
  await text(element, "1");
});

test("the socket closes when the last component is unmounted, and another opens for one that comes later", async () => {
  const { root, element } = mount([<Count key="1" />, <Count key="2" />]);
  const first = await peer();
  await text(element, "11");
  root.render([<Count key="1" />]);
  await text(element, "1");
  root.render([]);
  await first.closed.take();
  root.render([<Count key="3" />]);
  await peer({ state: { n: 7, list: [] } });
  await text(element, "7");
});

test("a component that is back at once finds its socket open", async () => {
  const { root, element } = mount(<Count key="1" />);
  const first = await peer();
  await text(element, "1");
  root.render([]);
  await text(element, "");
  root.render(<Count key="2" />);
  await text(element, "1");
  first.send({ type: "change", version: 2, ops: [{ op: "replace", path: "/n", value: 2 }], source: "server" });
  await text(element, "2");
  expect(server.peers.waiting).toEqual([]);
});

test("another name is another thread", async () => {
  const { root, element } = mount(<Count name="a" />);
  const first = await peer();
  await text(element, "1");
  root.render(<Count name="b" />);
  const second = await peer({ state: { n: 5, list: [] } });
  expect(second.url).toBe("/threads/note/b");
  await text(element, "5");
  await first.closed.take();
});

test("handlers and tokens of the last render are used, on the same socket", async () => {
  const seen: string[] = [];
  function Listener({ label }: { label: string }): ReactNode {
    const [count, setCount] = useState(0);
    const thread = useNote({
      token: () => `token ${label}`,
      onMessage: (data) => {
        seen.push(`${label} ${String(data)}`);
        setCount((before) => before + 1);
      },
    });
    useThreadEvent(thread, "goal", (by) => seen.push(`${label} goal ${String(by)}`));
    return `${label}${count}`;
  }
  const { root, element } = mount(<Listener label="x" />);
  const first = await server.peer();
  expect((await first.join({ state: { n: 1, list: [] } })).token).toBe("token x");
  first.send({ type: "message", data: "one" });
  await text(element, "x1");
  root.render(<Listener label="y" />);
  await text(element, "y1");
  first.send({ type: "event", name: "goal", data: "Ada" });
  first.send({ type: "message", data: "two" });
  await text(element, "y2");
  expect(seen).toEqual(["x one", "y goal Ada", "y two"]);
  first.send({ type: "auth_expiring", in: 5 });
  expect((await first.take("auth")).token).toBe("token y");
  expect(server.peers.waiting).toEqual([]);
});

test("presence and status are rendered as they change", async () => {
  function Who(): ReactNode {
    const thread = useNote();
    const presence = usePresence(thread);
    return `${useThreadStatus(thread)}: ${Object.keys(presence).join()}`;
  }
  const { element } = mount(<Who />);
  await text(element, "connecting: ");
  const first = await peer();
  await text(element, "online: ");
  first.send({ type: "presence", snapshot: { s1: { name: "Ada" } } });
  await text(element, "online: s1");
  first.send({ type: "presence", joined: { s2: { name: "Grace" } } });
  await text(element, "online: s1,s2");
  first.close(4403);
  await text(element, "closed: s1,s2");
  expect(server.peers.waiting).toEqual([]);
});

test("messages are rendered as they come, and what is sent at once", async () => {
  function Chat(): ReactNode {
    const thread = useNote({ messages });
    const { items, isReady, hasMore, messages: chat } = useMessages(thread);
    const said = items.map(({ content }) => content).join();
    return <button onClick={() => void chat.send("Hi")}>{`${isReady} ${hasMore} ${said}`}</button>;
  }
  const { element } = mount(
    <StrictMode>
      <Chat />
    </StrictMode>,
  );
  await text(element, "false false ");
  const first = await peer();
  expect(await first.take("open")).toEqual({ type: "open", part: "messages" });
  const item = { id: "a", role: "user" as const, content: "One", position: 1 };
  first.send({ type: "page", part: "messages", revision: 1, items: [item], reset: true, more: true });
  await text(element, "true true One");
  element.querySelector("button")!.click();
  await text(element, "true true One,Hi");
  expect((await first.take("send")).content).toBe("Hi");
  const other = { id: "b", role: "user" as const, content: "Two", position: 2 };
  first.send({ type: "part", part: "messages", revision: 2, op: "insert", message: other });
  await text(element, "true true One,Two,Hi");
});

test("the calls that wait for a person are rendered, and answered by their ids", async () => {
  function Waiting(): ReactNode {
    const thread = useNote({ messages });
    const waiting = useApprovals(thread);
    const approve = () => waiting.forEach(({ call }) => void thread.messages.approve(call, false, "Too much."));
    return (
      <button onClick={approve}>
        {waiting.map(({ tool, arguments: given, may_approve }) => `${tool} ${given} ${may_approve}`).join()}
      </button>
    );
  }
  const { element } = mount(
    <StrictMode>
      <Waiting />
    </StrictMode>,
  );
  const first = await peer();
  await first.take("open");
  const approvals = [{ call: "c", tool: "pay", arguments: "{}", message_id: "r" }];
  first.send({ type: "page", part: "messages", revision: 1, items: [], reset: true, may_approve: true });
  first.send({ type: "part", part: "messages", revision: 0, op: "update", approvals });
  await text(element, "pay {} true");
  element.querySelector("button")!.click();
  const { method, args } = await first.take("call");
  expect([method, args]).toEqual(["messages:approve", ["c", false, "Too much."]]);
  first.send({ type: "part", part: "messages", revision: 0, op: "update", approvals: [] });
  await text(element, "");
});

test("a run is rendered as it changes, and one that ended long ago is asked for once", async () => {
  function Job({ id }: { id: string | undefined }): ReactNode {
    const run = useTask(useNote({ tasks }), id);
    return run ? `${run.status} ${String(run.value)}` : "unknown";
  }
  const { root, element } = mount(<Job id={undefined} />);
  await text(element, "unknown");
  const first = await peer();
  expect(await first.take("open")).toEqual({ type: "open", part: "tasks" });
  const run = { id: "a", name: "work", status: "running" as const, value: 1, created_at: 1 };
  first.send({ type: "page", part: "tasks", revision: 0, reset: true, runs: [run] });
  root.render(<Job id="a" />);
  await text(element, "running 1");
  first.send({ type: "part", part: "tasks", revision: 1, op: "update", run: { ...run, value: 2 } });
  await text(element, "running 2");
  root.render(<Job id="old" />);
  await text(element, "unknown");
  const { ref, method, args } = await first.take("call");
  expect([method, args]).toEqual(["tasks:get", ["old"]]);
  first.send({ type: "result", ref, done: true, value: { ...run, id: "old", status: "done", created_at: 0 } });
  await text(element, "done 1");
  root.render(<Job id="none" />);
  await text(element, "unknown");
  first.send({ type: "result", ref: (await first.take("call")).ref, done: true, value: null });
  root.render(<Job id="a" />);
  await text(element, "running 2");
  expect(first.frames.waiting).toEqual([]);
});

test("messages without their option are a mistake that says so", () => {
  const thread = new ThreadClient({ host: server.host, kind: "note", name: "a", connect: false });
  clients.push(thread);
  function Chat(): ReactNode {
    return useMessages(thread).items.length;
  }
  expect(() => renderToString(<Chat />)).toThrow("messages needs the option messages");
});

function Early(): ReactNode {
  const thread = useNote();
  return `${useThreadStatus(thread)} `;
}

test("a later component adds its options to the client that an earlier one has made", async () => {
  let room: ThreadClient<Note> | undefined;
  function Late(): ReactNode {
    const thread = useNote({ messages, text: texts, undo });
    room = thread;
    return useMessages(thread)
      .items.map(({ content }) => content)
      .join();
  }
  const { root, element } = mount([<Early key="early" />]);
  const first = await peer({ texts: ["/list/0"] });
  await text(element, "online ");
  root.render([<Early key="early" />, <Late key="late" />]);
  expect(await first.take("open")).toEqual({ type: "open", part: "messages" });
  const item = { id: "a", role: "user" as const, content: "One", position: 1 };
  first.send({ type: "page", part: "messages", revision: 1, items: [item], reset: true });
  await text(element, "online One");
  void room?.append("/list/0", "!");
  expect((await first.take("push")).ops).toEqual([{ op: "splice", path: "/list/0", at: 1, insert: "!" }]);
  expect([room?.state?.list, room?.canUndo()]).toEqual([["a!"], true]);
  void room?.undo();
  expect(room?.state?.list).toEqual(["a"]);
  expect(server.peers.waiting).toEqual([]);
});

test("a component that is suspended until its thread is ready is shown when it is", async () => {
  function Ready(): ReactNode {
    const thread = useNote();
    use(thread.ready);
    return useThreadState(thread)?.n;
  }
  const { element } = mount(
    <Suspense fallback="waiting">
      <Ready />
    </Suspense>,
  );
  await text(element, "waiting");
  await peer({ state: { n: 7, list: [] } });
  await text(element, "7");
});

test("a method's call is pending until it has returned or failed", async () => {
  function Adder(): ReactNode {
    const thread = useNote<{ add(name: string): number }>();
    const { call, pending, data, error } = useRpc(thread, "add");
    return <button onClick={() => void call("Ada")}>{`${pending} ${data} ${error?.code}`}</button>;
  }
  const { element } = mount(<Adder />);
  const first = await peer();
  await text(element, "false undefined undefined");
  const click = async (pending: string) => {
    element.querySelector("button")?.click();
    await text(element, pending);
    return (await first.take("call")).ref;
  };
  let ref = await click("true undefined undefined");
  first.send({ type: "result", ref, value: 3, done: true });
  await text(element, "false 3 undefined");
  ref = await click("true 3 undefined");
  first.send({ type: "error", ref, code: "rejected", message: "no" });
  await text(element, "false 3 rejected");
});

test("what a server rendered from an initial state is taken over and then lives", async () => {
  const initialState = { n: 41, list: [] };
  const element = document.body.appendChild(document.createElement("main"));
  element.innerHTML = renderToString(<Count initialState={initialState} />);
  expect(element.textContent).toBe("41");
  const errors: unknown[] = [];
  roots.push(
    hydrateRoot(element, <Count initialState={initialState} />, { onRecoverableError: (error) => errors.push(error) }),
  );
  await peer({ state: { n: 42, list: [] } });
  await text(element, "42");
  expect(errors).toEqual([]);
});

test("a call with arguments that are no JSON ends with an error", async () => {
  function Adder(): ReactNode {
    const thread = useNote<{ add(name: unknown): number }>();
    const { call, pending, error } = useRpc(thread, "add");
    return <button onClick={call}>{`${pending} ${error?.code}`}</button>;
  }
  const { element } = mount(<Adder />);
  await peer();
  await text(element, "false undefined");
  element.querySelector("button")?.click();
  await text(element, "false error");
});

test("how a call of another thread or method goes is not shown", async () => {
  function Caller({ name, method }: { name: string; method: "add" | "drop" }): ReactNode {
    const thread = useNote<{ add(): number; drop(): number }>({ name });
    const { call, pending, data } = useRpc(thread, method);
    return <button onClick={() => void call()}>{`${name} ${method} ${pending} ${data}`}</button>;
  }
  const { root, element } = mount(<Caller name="a" method="add" />);
  const first = await peer();
  await text(element, "a add false undefined");
  element.querySelector("button")?.click();
  await text(element, "a add true undefined");
  root.render(<Caller name="a" method="drop" />);
  await text(element, "a drop false undefined");
  first.send({ type: "result", ref: (await first.take("call")).ref, value: 3, done: true });
  root.render(<Caller name="a" method="add" />);
  await text(element, "a add false 3");
  root.render(<Caller name="b" method="add" />);
  await text(element, "b add false undefined");
});

function Status(more: Partial<UseThreadOptions<Note>>): ReactNode {
  return useThreadStatus(useNote(more));
}

test("a component that is mounted again tries again where the one before was refused for good", async () => {
  const { root, element } = mount(<Status key="1" token="bad" />);
  const first = await server.peer();
  expect((await first.take("join")).token).toBe("bad");
  first.close(4401);
  await text(element, "closed");
  root.render(<Status key="1" token="good" />);
  root.render(<Status key="2" token="good" />);
  const second = await server.peer();
  expect((await second.join({ state: { n: 1, list: [] } })).token).toBe("good");
  await text(element, "online");
});

test("the token of the last render is used, of whichever component", async () => {
  const { root, element } = mount([<Status key="1" token={() => "one"} />, <Status key="2" token={() => "two"} />]);
  const first = await server.peer();
  expect((await first.join({ state: { n: 1, list: [] } })).token).toBe("two");
  await text(element, "onlineonline");
  root.render([<Status key="2" token={() => "three"} />]);
  await text(element, "online");
  first.drop();
  const second = await server.peer();
  expect((await second.join({ state: { n: 1, list: [] } })).token).toBe("three");
});

test("another user in the place of one finds another socket, with a token of their own", async () => {
  const { root, element } = mount(<Status key="ada" token="ada" />);
  const first = await server.peer();
  expect((await first.join({ state: { n: 1, list: [] } })).token).toBe("ada");
  await text(element, "online");
  root.render(<Status key="bob" token="bob" />);
  const second = await server.peer();
  expect((await second.join({ state: { n: 1, list: [] } })).token).toBe("bob");
  await text(element, "online");
  await first.closed.take();
});

test("a token that was rendered later is sent when the one before it is about to expire, the same one is not", async () => {
  const [one, two] = [1, 2].map((exp) => jwt({ sub: "ada", exp }));
  const { root, element } = mount([<Count key="1" token={one} />]);
  const first = await peer();
  await text(element, "1");
  first.send({ type: "auth_expiring", in: 30 });
  first.send({ type: "change", version: 2, ops: [{ op: "replace", path: "/n", value: 2 }], source: "server" });
  await text(element, "2");
  root.render([<Count key="1" token={two} />, "!"]);
  await text(element, "2!");
  first.send({ type: "auth_expiring", in: 30 });
  expect((await first.take("auth")).token).toBe(two);
});

test("the first commit after a switch of user shows nothing of the one before", async () => {
  const { root, element } = mount(<Count key="1" token="ada" />);
  await peer({ state: { n: 42, list: [] } });
  await text(element, "42");
  flushSync(() => root.render(<Count key="1" token="bob" />));
  expect(element.textContent).toBe("none");
  const second = await server.peer();
  expect((await second.join({ state: { n: 7, list: [] } })).token).toBe("bob");
  await text(element, "7");
  flushSync(() => root.render(<Count key="2" token="eve" />));
  expect(element.textContent).toBe("none");
  expect((await (await server.peer()).join({ state: { n: 8, list: [] } })).token).toBe("eve");
  await text(element, "8");
  flushSync(() => root.render(<Count key="2" />));
  expect(element.textContent).toBe("none");
  expect((await (await server.peer()).join({ state: { n: 9, list: [] } })).token).toBeUndefined();
  await text(element, "9");
});

test("what was picked for one user is not shown to another, also where a comparison takes the two for equal", async () => {
  const isEqual = (a: { of: number }, b: { of: number }) => typeof a === typeof b;
  const pick = (note: { n: number } | undefined) => ({ of: note?.n ?? 0 });
  function Picked({ token }: { token: string }): ReactNode {
    const thread = useNote({ token, initialState: { n: token.length, list: [] } });
    return String(useThreadState(thread, pick, isEqual).of);
  }
  const { root, element } = mount(<Picked token="ada" />);
  await text(element, "3");
  flushSync(() => root.render(<Picked token="grace" />));
  expect(element.textContent).toBe("5");
});

test("options that are new at each render end with one client, and a warning", async () => {
  const warn = vi.spyOn(console, "warn").mockImplementation(() => undefined);
  let renders = 0;
  function Inline({ own }: { own: () => Partial<UseThreadOptions<Note>> }): ReactNode {
    renders++;
    const thread = useNote(own());
    return `${useThreadStatus(thread)} ${useThreadState(thread)?.n}`;
  }
  const inlines = [
    () => ({ client: crypto.randomUUID() }),
    () => ({ storage: keepIn(new MemoryStorage()), client: "me" }),
  ];
  for (const [index, own] of inlines.entries()) {
    const { element } = mount(
      <StrictMode>
        <Inline own={own} />
      </StrictMode>,
    );
    const joins = (async () => {
      // The first ones are closed a moment later.
      while (element.textContent !== "online 1") await peer().catch(() => undefined);
    })();
    await text(element, "online 1");
    expect(warn).toHaveBeenCalledTimes(index + 1);
    clients.splice(0).forEach((client) => client.close());
    void joins;
  }
  expect(renders).toBeLessThan(60);
  warn.mockRestore();
});

test("another client id is another client at once, whatever it was before", async () => {
  const warn = vi.spyOn(console, "warn");
  const { root, element } = mount(<Count key="1" client="a" />);
  await peer();
  await text(element, "1");
  for (const [n, client] of ["b", "c", "d", "e"].entries()) {
    flushSync(() => root.render(<Count key="1" client={client} />));
    expect(element.textContent).toBe("none");
    const next = await server.peer();
    expect((await next.join({ state: { n: n + 2, list: [] } })).client).toBe(client);
    await text(element, String(n + 2));
  }
  expect(warn).not.toHaveBeenCalled();
  warn.mockRestore();
});

test("a change that is refused when its component is unmounted is told to the app", async () => {
  const told = new Arrivals<string>();
  const unsubscribe = ThreadClient.onRefused(({ error }) => {
    // Clients of other tests may still be closing.
    if (error.code !== "closed") told.put(error.code);
  });
  const heard = new Arrivals<string>();
  function Button({ onRefused }: ThreadHandlers): ReactNode {
    const thread = useNote(onRefused && { onRefused });
    const n = useThreadState(thread)?.n;
    return <button onClick={() => thread.edit((note) => void note.n++)}>{n ?? "none"}</button>;
  }
  const { root, element } = mount(<Button key="1" onRefused={({ error }) => heard.put(error.code)} />);
  const first = await peer();
  const click = async () => {
    await text(element, "1");
    element.querySelector("button")?.click();
    await text(element, "2");
    return (await first.take("push")).ref;
  };
  const refuse = (ref: number) => first.send({ type: "nack", ref, code: "rejected", message: "no", version: 1 });
  refuse(await click());
  expect(await heard.take()).toBe("rejected");
  root.render(<Button key="1" />);
  refuse(await click());
  expect(await told.take()).toBe("rejected");
  const ref = await click();
  root.render([]);
  await text(element, "");
  refuse(ref);
  expect(await told.take()).toBe("rejected");
  expect([told.waiting, heard.waiting]).toEqual([[], []]);
  unsubscribe();
});

test("a textarea is bound to a text by its ref, and a component renders with it, under StrictMode too", async () => {
  function Pad({ pointer }: { pointer: string }): ReactNode {
    const { ref, value } = useText(useNote({ text: texts }), pointer);
    return (
      <>
        <textarea ref={ref} />
        <p>{value ?? "none"}</p>
      </>
    );
  }
  const { root, element } = mount(
    <StrictMode>
      <Pad pointer="/list/0" />
    </StrictMode>,
  );
  const first = await peer({ state: { n: 1, list: ["abc", "other"] } });
  await text(element, "abc");
  const area = element.querySelector("textarea") as HTMLTextAreaElement;
  area.setRangeText("X", 3, 3, "end");
  area.dispatchEvent(new Event("input", { bubbles: true }));
  expect((await first.take("push")).ops).toEqual([{ op: "splice", path: "/list/0", at: 3, insert: "X" }]);
  await text(element, "abcX");
  first.send({
    type: "change",
    version: 2,
    ops: [{ op: "splice", path: "/list/0", at: 0, insert: "-" }],
    source: "s2",
  });
  await text(element, "-abcX");
  expect([area.value, area.selectionStart]).toEqual(["-abcX", 5]);
  root.render(
    <StrictMode>
      <Pad pointer="/list/1" />
    </StrictMode>,
  );
  await text(element, "other");
  expect(area.value).toBe("other");
  root.render(
    <StrictMode>
      <Pad pointer="/list/2" />
    </StrictMode>,
  );
  await text(element, "none");
  expect([area.value, area.readOnly]).toEqual(["", true]);
});
