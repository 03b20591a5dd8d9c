// @vitest-environment jsdom
/** The hooks for what can be undone, what waits, what fails, and what streams. */

import { StrictMode } from "react";
import type { ReactNode } from "react";
import { renderToString } from "react-dom/server";
import { expect, test, vi } from "vitest";

import type { ThreadClient } from "../src/client.js";
import {
  useCanRedo,
  useCanUndo,
  useErrorListener,
  usePending,
  useRedo,
  useStatus,
  useStream,
  useThread,
  useThreadState,
  useThreadStatus,
  useUndo,
} from "../src/react.js";
import { undo } from "../src/undo.js";
import { mount, mounting, until } from "./mounting.js";
import type { Peer } from "./server.js";
import { server, serving } from "./serving.js";

serving();
mounting();

interface Note {
  n: number;
  title: string;
}

interface Rpcs {
  count(to: number): AsyncIterable<number>;
}

function useNote(): ThreadClient<Note, Rpcs> {
  return useThread<Note, Rpcs>({ host: server.host, kind: "note", name: "a", undo });
}

async function peer(): Promise<Peer> {
  const next = await server.peer();
  await next.join({ state: { n: 1, title: "" } });
  return next;
}

function click(element: HTMLElement, label: string): void {
  const found = [...element.querySelectorAll("button")].find(({ name }) => name === label);
  found!.click();
}

test("own changes are undone and made again, and what waits for an answer is counted", async () => {
  function Editor(): ReactNode {
    const room = useNote();
    const [back, again] = [useUndo(room), useRedo(room, "/n")];
    return (
      <>
        <button name="edit" onClick={() => void room.update("/n", 2)} />
        <button name="undo" onClick={back} />
        <button name="redo" onClick={again} />
        {[
          useThreadState(room)?.n,
          useCanUndo(room),
          useCanUndo(room, "/title"),
          useCanRedo(room),
          usePending(room),
        ].join()}
      </>
    );
  }
  const { element } = mount(<Editor />);
  const first = await peer();
  await until(element, "1,false,false,false,0");
  click(element, "edit");
  await until(element, "2,true,false,false,1");
  first.send({ type: "ack", ref: 1, version: 2 });
  await until(element, "2,true,false,false,0");
  click(element, "undo");
  await until(element, "1,false,false,true,1");
  click(element, "redo");
  await until(element, "2,true,false,false,2");
});

test("errors are told once: refused changes, and why the client was closed, to the function of the last render", async () => {
  const complained = vi.mocked(console.error);
  complained.mockImplementation(() => undefined);
  const told: string[] = [];
  function Listener({ label }: { label: string }): ReactNode {
    const room = useNote();
    useErrorListener(room, ({ code }) => told.push(`${label} ${code}`));
    return <button onClick={() => void room.update("/n", 2)}>{`${useStatus(room)} ${useThreadState(room)?.n}`}</button>;
  }
  const { root, element } = mount(
    <StrictMode>
      <Listener label="one" />
    </StrictMode>,
  );
  const first = await peer();
  await until(element, "online 1");
  element.querySelector("button")!.click();
  const { ref } = await first.take("push");
  first.send({ type: "nack", ref, code: "rejected", message: "no", version: 1 });
  await until(element, "online 1");
  root.render(
    <StrictMode>
      <Listener label="two" />
    </StrictMode>,
  );
  await vi.waitFor(() => expect(told).toEqual(["one rejected"]));
  element.querySelector("button")!.click();
  await until(element, "online 2");
  first.close(4403);
  await until(element, "closed 2");
  expect(told).toEqual(["one rejected", "two forbidden"]);
  complained.mockReset();
});

test("the chunks of a stream are shown as they come; another call, and leaving, cancel it", async () => {
  function Counter(): ReactNode {
    const { call, cancel, chunks, pending, data, error } = useStream(useNote(), "count");
    return (
      <>
        <button name="call" onClick={() => call(3)} />
        <button name="cancel" onClick={cancel} />
        {`${chunks.join("+")} ${pending} ${String(data)} ${error?.code}`}
      </>
    );
  }
  const { root, element } = mount(
    <StrictMode>
      <Counter />
    </StrictMode>,
  );
  const first = await peer();
  await until(element, " false undefined undefined");
  click(element, "call");
  let { ref } = await first.take("call");
  first.send({ type: "result", ref, value: 1, done: false });
  await until(element, "1 true undefined undefined");
  first.send({ type: "result", ref, value: 2, done: false });
  first.send({ type: "result", ref, value: "end", done: true });
  await until(element, "1+2 false end undefined");
  click(element, "call");
  await until(element, " true undefined undefined");
  ({ ref } = await first.take("call"));
  first.send({ type: "error", ref, code: "rejected", message: "no" });
  await until(element, " false undefined rejected");
  click(element, "call");
  ({ ref } = await first.take("call"));
  first.send({ type: "result", ref, value: 1, done: false });
  await until(element, "1 true undefined undefined");
  click(element, "cancel");
  expect((await first.take("cancel")).ref).toBe(ref);
  await until(element, "1 false undefined undefined");
  click(element, "call");
  ({ ref } = await first.take("call"));
  click(element, "call");
  expect((await first.take("cancel")).ref).toBe(ref);
  ({ ref } = await first.take("call"));
  await until(element, " true undefined undefined");
  root.render(null);
  expect((await first.take("cancel")).ref).toBe(ref);
});

test("on a server nothing waits and nothing can be undone", () => {
  function All(): ReactNode {
    const room = useNote();
    return [useStatus(room), useThreadStatus(room), usePending(room), useCanUndo(room), useCanRedo(room)].join();
  }
  expect(renderToString(<All />)).toBe("connecting,connecting,0,false,false");
});
