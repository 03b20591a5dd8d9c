/** A `fetch` for HttpAgent that comes back when its connection is lost, and goes on with what it has missed. */
export function resuming(request = fetch, pause = () => new Promise((go) => setTimeout(go, 1000))) {
  return async (url, init) => {
    const first = await request(url, init);
    if (!first.ok) return first;
    let reader = first.body.getReader();
    let id = "";
    let rest = "";
    const decoder = new TextDecoder();

    async function comeBack() {
      for (;;) {
        await pause();
        try {
          const headers = { ...init.headers, "Last-Event-ID": id };
          const events = url.endsWith("/events") ? url : `${url}/events`;
          const answer = await request(events, { method: "GET", headers, signal: init.signal });
          if (answer.ok) return answer.body.getReader();
          if (answer.status < 500 && answer.status !== 429) throw new Error(`HTTP ${answer.status}`);
        } catch (error) {
          if (init.signal?.aborted || String(error.message).startsWith("HTTP")) throw error;
        }
      }
    }

    const body = new ReadableStream({
      async pull(controller) {
        for (;;) {
          let part;
          try {
            part = await reader.read();
          } catch (error) {
            if (init.signal?.aborted) throw error;
          }
          if (part?.value) {
            // Only whole events go on, so that nothing comes twice.
            const events = (rest + decoder.decode(part.value, { stream: true })).split("\n\n");
            rest = events.pop();
            for (const event of events) id = /^id: ?(.*)$/m.exec(event)?.[1] ?? id;
            if (events.length === 0) continue;
            controller.enqueue(new TextEncoder().encode(events.map((event) => `${event}\n\n`).join("")));
            return;
          }
          if (part?.done && (id === "" || id.endsWith(".end"))) {
            controller.close();
            return;
          }
          rest = "";
          reader = await comeBack();
        }
      },
      cancel: () => reader.cancel(),
    });
    return new Response(body, { status: first.status, headers: first.headers });
  };
}
