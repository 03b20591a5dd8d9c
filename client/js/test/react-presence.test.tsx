// @vitest-environment jsdom
/** `useOthers`, `useOther` and `useSelf`: the people in a thread, and who renders when one of them changes. */

import { Profiler, memo } from "react";
import type { ReactNode } from "react";
import { renderToString } from "react-dom/server";
import { expect, test } from "vitest";

import type { ThreadClient } from "../src/client.js";
import { useOther, useOthers, useSelf, useThread } from "../src/react.js";
import type { Person } from "../src/react.js";
import { mount, mounting, until } from "./mounting.js";
import type { Peer } from "./server.js";
import { server, serving } from "./serving.js";

serving();
mounting();

interface Shown {
  name: string;
  x?: number;
}

/** How often each component has rendered. */
const rendered = new Map<string, number>();

function count(name: string): void {
  rendered.set(name, (rendered.get(name) ?? 0) + 1);
}

function useNote(): ThreadClient {
  return useThread({ host: server.host, kind: "note", name: "a" }) as ThreadClient;
}

async function peer(): Promise<Peer> {
  const next = await server.peer();
  await next.join({ state: null, connection: "me" });
  return next;
}

const Cursor = memo(function Cursor({ id }: { id: string }): ReactNode {
  count(id);
  return `${useOther(useNote(), id, ({ x }: Shown) => x)} `;
});

function Cursors(): ReactNode {
  count("list");
  const ids = useOthers(useNote(), (others) => others.map(({ connection }) => connection));
  return ids.map((id) => <Cursor key={id} id={id} />);
}

function Names(): ReactNode {
  count("names");
  return useOthers(useNote(), (others: readonly Person<Shown>[]) => others.map(({ presence }) => presence.name)).join();
}

test("of twenty people one moves, and its cursor alone renders", async () => {
  const ids = Array.from({ length: 20 }, (_, n) => `c${n}`);
  const { element } = mount([<Cursors key="cursors" />, <Names key="names" />]);
  const first = await peer();
  first.send({ type: "presence", snapshot: Object.fromEntries(ids.map((id) => [id, { name: id, x: 0 }])) });
  await until(element, `${"0 ".repeat(20)}${ids.join()}`);
  rendered.clear();
  for (let x = 1; x <= 20; x++) {
    first.send({ type: "presence", updated: { c7: { name: "c7", x } } });
    await until(element, `${"0 ".repeat(7)}${x} ${"0 ".repeat(12)}${ids.join()}`);
  }
  expect([...rendered]).toEqual([["c7", 20]]);
});

test("unchanged people stay the same objects, also when others leave, and so does the list without a change", async () => {
  const lists: (readonly Person[])[] = [];
  function List(): ReactNode {
    const others = useOthers(useNote());
    if (lists.at(-1) !== others) lists.push(others);
    return others.map(({ connection }) => connection).join();
  }
  const { element } = mount(<List />);
  const first = await peer();
  first.send({ type: "presence", snapshot: { a: { x: 1 }, b: { x: 2 }, me: { x: 3 } } });
  await until(element, "a,b");
  const [, b] = lists.at(-1)!;
  const seen = lists.length;
  first.send({ type: "presence", updated: { me: { x: 4 } } });
  first.send({ type: "presence", snapshot: { a: { x: 1 }, b: { x: 2 }, me: { x: 5 } } });
  first.send({ type: "presence", joined: { c: { x: 9 } }, left: ["a"] });
  await until(element, "b,c");
  expect(lists.length).toBe(seen + 1);
  expect(lists.at(-1)![0]).toBe(b);
});

test("a connection that is not there has no presence, whatever the name", async () => {
  function Who({ id }: { id: string }): ReactNode {
    return String(useOther<Shown>(useNote(), id)?.name);
  }
  const { root, element } = mount(<Who id="constructor" />);
  const first = await peer();
  await until(element, "undefined");
  root.render(<Who id="a" />);
  first.send({ type: "presence", snapshot: { a: { name: "Ada" }, me: { name: "Me" } } });
  await until(element, "Ada");
  root.render(<Who id="me" />);
  await until(element, "undefined");
  root.render(<Who id="a" />);
  first.send({ type: "presence", left: ["a"] });
  await until(element, "undefined");
});

test("one's own presence is shown as soon as it is set, and not again when it comes from the server", async () => {
  let room: ThreadClient | undefined;
  let commits = 0;
  function Self(): ReactNode {
    room = useNote();
    const self = useSelf<Shown>(room);
    return `${self?.connection} ${self?.presence?.name} ${useSelf(room, ({ presence }: Person<Shown>) => presence?.x)}`;
  }
  const { element } = mount(
    <Profiler id="self" onRender={() => commits++}>
      <Self />
    </Profiler>,
  );
  await until(element, "undefined undefined undefined");
  const first = await peer();
  await until(element, "me undefined undefined");
  room!.setPresence({ name: "Ada" });
  room!.updatePresence({ x: 1 });
  await until(element, "me Ada 1");
  expect((await first.take("presence")).data).toEqual({ name: "Ada", x: 1 });
  const before = commits;
  first.send({ type: "presence", snapshot: { me: { name: "Ada", x: 1 } } });
  room!.updatePresence({ x: 2 });
  await until(element, "me Ada 2");
  expect(commits).toBe(before + 1);
});

test("a server renders no people", () => {
  function All(): ReactNode {
    const room = useNote();
    return `${useOthers(room).length} ${useOther(room, "a")} ${useSelf(room)}`;
  }
  expect(renderToString(<All />)).toBe("0 undefined undefined");
});
