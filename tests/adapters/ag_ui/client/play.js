/**
 * One HttpAgent: runs or watches an agent, and writes a line of JSON for each event and one for how it ended. A line on
 * stdin makes it come back after the cut, or leave.
 */
import { createInterface } from "node:readline";
import { HttpAgent } from "@ag-ui/client";
import { resuming } from "./resuming.js";

const { url, watches, text, id, state, forwardedProps, resume, threadId, cutAfter, leavesAt, headers } = JSON.parse(
  process.argv[2],
);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const write = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);

/** A connection that is lost after so many events of text. */
async function cutting(address, init) {
  const lost = new AbortController();
  const signal = init.signal ? AbortSignal.any([init.signal, lost.signal]) : lost.signal;
  const answer = await fetch(address, { ...init, signal });
  if (init.method === "GET" && !watches) write({ back: init.headers["Last-Event-ID"] });
  if (init.method === "GET") return answer;
  let left = cutAfter;
  const counting = new TransformStream({
    transform(chunk, controller) {
      controller.enqueue(chunk);
      left -= new TextDecoder().decode(chunk).split("TEXT_MESSAGE_CONTENT").length - 1;
      if (left <= 0) setTimeout(() => lost.abort());
    },
  });
  return new Response(answer.body.pipeThrough(counting), { status: answer.status, headers: answer.headers });
}

/** A viewer: the same client, with GET in the place of POST. */
const watching = (address, init) => fetch(address, { method: "GET", headers: init.headers, signal: init.signal });

async function cut() {
  write({ cut: true });
  await lines.next();
}

const agent = new HttpAgent({
  url: watches ? `${url}/events` : url,
  threadId,
  headers,
  fetch: watches ? watching : cutAfter ? resuming(cutting, cut) : undefined,
  initialState: state,
  initialMessages: text === undefined ? [] : [{ id: id ?? "1", role: "user", content: text }],
});

const subscriber = {
  onEvent({ event }) {
    write({ event });
    if (event.type === leavesAt) agent.abortRun();
  },
  onRunFinishedEvent({ outcome }) {
    write({ outcome });
  },
};
let error = null;
let result = null;
try {
  ({ result } = await agent.runAgent({ forwardedProps, resume }, subscriber));
} catch (caught) {
  error = { message: caught.message, status: caught.status, payload: caught.payload };
}
const texts = agent.messages.filter((each) => each.role === "assistant").map((each) => each.content);
const tools = agent.messages.filter((each) => each.role === "tool").map((each) => each.content);
const messages = agent.messages.map(({ id, role, content }) => ({ id, role, content }));
write({ done: { error, result: result ?? null, state: agent.state, texts, tools, messages } });
process.exit(0);
