// @vitest-environment jsdom
/** `Room` and `useRoom`: a thread for the components in an element. */

import { Component, StrictMode, useState } from "react";
import type { ReactNode } from "react";
import { hydrateRoot } from "react-dom/client";
import { renderToString } from "react-dom/server";
import { expect, test, vi } from "vitest";

import { PlaitError } from "../src/errors.js";
import { keepIn } from "../src/keep.js";
import type { Joined } from "../src/protocol.js";
import { Room, useRoom, useStatus, useThreadState } from "../src/react.js";
import { mount, mounting, roots, until } from "./mounting.js";
import type { Peer } from "./server.js";
import { server, serving } from "./serving.js";
import { MemoryStorage } from "./storages.js";

serving();
mounting();

interface Note {
  n: number;
}

declare module "../src/kinds.js" {
  interface Kinds {
    note: { state: Note; rpcs: object; events: object };
    lobby: { state: Note; rpcs: object; events: object };
  }
}

async function peer(joined: Partial<Joined> = {}): Promise<Peer> {
  const next = await server.peer();
  await next.join({ state: { n: 1 }, ...joined });
  return next;
}

let renders = { inside: 0, fallback: 0 };

function Inside(): ReactNode {
  const room = useRoom("note");
  renders.inside++;
  return `${useThreadState(room, ({ n }) => n)} ${useStatus(room)}`;
}

function Fallback(): ReactNode {
  renders.fallback++;
  return <i>loading</i>;
}

function Note({ name, children = <Inside /> }: { name: string | null; children?: ReactNode }): ReactNode {
  return (
    <Room kind="note" name={name} host={server.host} fallback={<Fallback />}>
      {children}
    </Room>
  );
}

class Boundary extends Component<{ children: ReactNode }, { error?: Error | undefined }> {
  override state: { error?: Error | undefined } = {};

  static getDerivedStateFromError(error: Error): { error: Error } {
    return { error };
  }

  override render(): ReactNode {
    const { error } = this.state;
    const retry = () => this.setState({ error: undefined });
    return error ? <button onClick={retry}>{`failed: ${(error as PlaitError).code}`}</button> : this.props.children;
  }
}

test("a room shows something else until its state has come, and not again while it is offline", async () => {
  const { element } = mount(
    <StrictMode>
      <Note name="a" />
    </StrictMode>,
  );
  await until(element, "loading");
  const first = await peer();
  await until(element, "1 online");
  renders = { inside: 0, fallback: 0 };
  first.drop();
  await until(element, "1 offline");
  await peer({ state: { n: 2 } });
  await until(element, "2 online");
  expect(renders.fallback).toBe(0);
  expect(renders.inside).toBeGreaterThan(0);
  expect(server.peers.waiting).toEqual([]);
});

test("without a name a room shows something else, and opens no thread", async () => {
  const { root, element } = mount(<Note name={null} />);
  await until(element, "loading");
  root.render(<Note name="a" />);
  const first = await peer();
  expect(first.url).toBe("/threads/note/a");
  await until(element, "1 online");
  root.render(<Note name={null} />);
  await until(element, "loading");
  await first.closed.take();
  expect(server.peers.waiting).toEqual([]);
});

test("another name mounts other components, with the other thread", async () => {
  function Draft(): ReactNode {
    const [first] = useState(useRoom().name);
    return `${first} of ${useRoom().name}`;
  }
  const { root, element } = mount(
    <Note name="a">
      <Draft />
    </Note>,
  );
  await peer();
  await until(element, "a of a");
  root.render(
    <Note name="b">
      <Draft />
    </Note>,
  );
  await until(element, "loading");
  await peer();
  await until(element, "b of b");
});

test("rooms in rooms are found by their kinds, the nearest one without", async () => {
  function Both(): ReactNode {
    return [useRoom("lobby").name, useRoom("note").name, useRoom().name].join();
  }
  const { element } = mount(
    <Room kind="lobby" name="hall" host={server.host}>
      <Note name="a">
        <Both />
      </Note>
    </Room>,
  );
  for (let n = 0; n < 2; n++) await peer();
  await until(element, "hall,a,a");
});

test("a component outside of a room is told so", () => {
  expect(() => renderToString(<Inside />)).toThrow('useRoom("note") needs a <Room> around it');
});

test("a thread that refuses the client before it has a state throws, and is tried again when it is mounted again", async () => {
  const complained = vi.mocked(console.error);
  complained.mockImplementation(() => undefined);
  const { element } = mount(
    <Boundary>
      <Note name="a" />
    </Boundary>,
  );
  (await server.peer()).close(4403);
  await until(element, "failed: forbidden");
  element.querySelector("button")!.click();
  const second = await peer();
  await until(element, "1 online");
  second.close(4403);
  await until(element, "1 closed");
  complained.mockReset();
});

test("a state that a storage has kept is shown before the thread is joined", async () => {
  const storage = new MemoryStorage();
  const kept = {
    at: ["e", 1],
    confirmed: { n: 1 },
    pushes: [{ ref: 1, made: ["e", 1], ops: [{ op: "replace", path: "/n", value: 7 }] }],
  };
  storage.setItem(`plait:${server.host}/threads/note/a me`, JSON.stringify({ client: "me", next: 2, fold: kept }));
  const { element } = mount(
    <Room kind="note" name="a" host={server.host} client="me" storage={keepIn(storage)} fallback="loading">
      <Inside />
    </Room>,
  );
  await until(element, "7 connecting");
  await peer();
});

test("a page takes over a room that a server has rendered without its state, and then shows it", async () => {
  const element = document.body.appendChild(document.createElement("main"));
  const page = (
    <StrictMode>
      <Note name="a" />
    </StrictMode>
  );
  element.innerHTML = renderToString(page);
  expect(element.textContent).toBe("loading");
  const errors: unknown[] = [];
  roots.push(hydrateRoot(element, page, { onRecoverableError: (error) => errors.push(error) }));
  await peer();
  await until(element, "1 online");
  expect(errors).toEqual([]);
});

test("a page takes over a room that a server has rendered from an initial state", async () => {
  const element = document.body.appendChild(document.createElement("main"));
  const page = (
    <Room kind="note" name="a" host={server.host} initialState={{ n: 41 }} fallback="loading">
      <Inside />
    </Room>
  );
  element.innerHTML = renderToString(page);
  expect(element.textContent).toBe("41 connecting");
  const errors: unknown[] = [];
  roots.push(hydrateRoot(element, page, { onRecoverableError: (error) => errors.push(error) }));
  await peer({ state: { n: 42 } });
  await until(element, "42 online");
  expect(errors).toEqual([]);
});
