import { Suspense, use } from "react";
import type { ReactNode } from "react";
import { renderToReadableStream } from "react-dom/server.browser";
import { renderToString } from "react-dom/server";
import { expect, test } from "vitest";

import { usePresence, useQuery, useThread, useThreadState, useThreadStatus } from "../src/react.js";
import { Server } from "./server.js";

test("rendering on a server opens no socket, and shares nothing between requests", async () => {
  const server = new Server();
  await server.start();
  const clients = new Set<unknown>();
  function Page({ initialState }: { initialState?: { n: number } }): ReactNode {
    const thread = useThread<{ n: number }>({ host: server.host, kind: "note", name: "a", initialState });
    clients.add(thread);
    const presence = usePresence(thread);
    return `${useThreadStatus(thread)} ${useThreadState(thread)?.n} ${Object.keys(presence).length}`;
  }
  expect(renderToString(<Page initialState={{ n: 3 }} />)).toBe("connecting 3 0");
  expect(renderToString(<Page />)).toBe("connecting undefined 0");
  expect(clients.size).toBe(2);
  // Without a WebSocket in Node 20, connecting would have thrown; elsewhere it would have come by now.
  await new Promise((resolve) => setImmediate(resolve));
  expect(server.peers.waiting).toEqual([]);
  await server.stop();
});

test("a page that waits for a thread is rendered on a server with what stands in for it", async () => {
  function Page(): ReactNode {
    const thread = useThread<{ n: number }>({ host: "127.0.0.1:1", kind: "note", name: "a" });
    use(thread.ready);
    return "there";
  }
  const told: string[] = [];
  const stream = await renderToReadableStream(
    <Suspense fallback="waiting">
      <Page />
    </Suspense>,
    { onError: (error) => void told.push((error as Error).message) },
  );
  await stream.allReady;
  expect(await new Response(stream).text()).toContain("waiting");
  expect(told).toEqual(["rendering on a server opens no socket"]);
});

test("a query has no result on a server, and one for which a component is suspended leaves what stands in for it", async () => {
  function Page({ suspense }: { suspense: boolean }): ReactNode {
    const thread = useThread({ host: "127.0.0.1:1", kind: "shop", name: "a" });
    const { data, error, at } = useQuery(thread, { query: "open_orders", suspense }, "c1");
    return [data, error, at].map(String).join(" ");
  }
  expect(renderToString(<Page suspense={false} />)).toBe("undefined undefined undefined");
  const told: string[] = [];
  const stream = await renderToReadableStream(
    <Suspense fallback="waiting">
      <Page suspense />
    </Suspense>,
    { onError: (error) => void told.push((error as Error).message) },
  );
  await stream.allReady;
  expect(await new Response(stream).text()).toContain("waiting");
  expect(told).toEqual(["a server follows no query"]);
});
