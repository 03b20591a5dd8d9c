// useAgent in a page.

import { render, shows, text } from "../page.js";

import { useAgent } from "agents/react";
import { StrictMode, createElement, useEffect } from "react";
import WebSocket from "ws";

import { BusyPage } from "../busy_page.js";
import { Cable } from "../cable.js";
import { failure, join, settle, stored } from "../peer.js";
import { step } from "../step.js";
import { TIMEOUT, changed, until } from "../waiting.js";

/** Shows the state of a room as text; `record` keeps the agent and all that it was told. */
function Page({ record, options }) {
  const keep = (list) => (entry) => {
    list.push(entry);
    changed();
  };
  record.agent = useAgent({
    agent: "room",
    name: "one",
    WebSocket,
    minReconnectionDelay: 50,
    maxReconnectionDelay: 200,
    defaultCallTimeout: TIMEOUT,
    ...options,
    onOpen: keep(record.opens),
    onClose: keep(record.closes),
    onStateUpdateError: keep(record.errors),
    onMessage: keep(record.messages),
  });
  record.rendered.push(record.agent.state);
  useEffect(changed);
  return createElement("output", null, JSON.stringify(record.agent.state) ?? "nothing");
}

/** Shows a page, and returns the record of what happens to it. */
async function open(host, { strict = false, ...options } = {}) {
  const record = { opens: [], closes: [], errors: [], messages: [], rendered: [] };
  const page = createElement(Page, { record, options: { host, ...options } });
  record.leave = render(strict ? createElement(StrictMode, null, page) : page);
  await until("the page has its agent", () => record.agent?.identified);
  await record.agent.ready;
  record.sync = () => record.agent.call("sync");
  return record;
}

/** Renders the state at first, the server's, one's own, and another client's. */
export async function states(address, options) {
  const other = await join(address);
  const page = await open(address, options);
  const { name, agent, identified } = page.agent;
  await shows('{"n":0}');
  const result = await page.agent.call("add", [2]);
  await shows('{"n":2}');
  page.agent.setState({ n: 3 });
  await shows('{"n":3}');
  await other.until("the page's state has come", () => other.state.n === 3);
  other.client.setState({ n: 4 });
  await shows('{"n":4}');
  const members = new Set(await other.call("everybody"));
  return { identity: { name, agent, identified }, result, members: members.size, stored: await stored(address) };
}

/** The server sets a state, and the page writes some others in turn, each when the one before is shown. */
export async function sequential(address, { initial, states, ...options }) {
  const page = await open(address, { WebSocket: BusyPage, ...options });
  await page.agent.call("set", [initial]);
  await shows(JSON.stringify(initial));
  for (const state of states) {
    page.agent.setState(state);
    await shows(JSON.stringify(state));
  }
  await page.sync();
  await page.sync();
  return { shown: page.agent.state, stored: await stored(address) };
}

/** Calls, with and without a stream, by call and by stub. */
export async function calls(address) {
  const { agent } = await open(address, { agent: "calls" });
  const chunks = [];
  await agent.call("count", [3], { stream: { onChunk: (chunk) => chunks.push(chunk) } });
  return {
    chunks,
    stub: await agent.stub.addPlayer("Ada", 2),
    missing: await failure(agent.call("missing")),
    failed: await failure(agent.stub.fail("as it was said")),
  };
}

/** Writes what is refused. */
export async function rejected(address, options) {
  const page = await open(address, options);
  page.agent.setState({ n: 1 });
  await page.sync();
  page.agent.setState({ n: 2, forbidden: true });
  await until("the error has come", () => page.errors.length > 0);
  await shows('{"n":1}');
  return { errors: page.errors, state: page.agent.state, stored: await stored(address) };
}

/** Is mounted twice, as StrictMode does; leaves one connection, and none when it is unmounted. */
export async function strict(address) {
  const other = await join(address);
  const page = await open(address, { strict: true });
  const me = await other.call("whoami");
  const others = async () => (await other.call("everybody")).filter((id) => id !== me);
  await page.sync();
  const mounted = await others();
  page.leave();
  await until("the socket is closed", () => page.agent.readyState === WebSocket.CLOSED);
  let left;
  do left = await others();
  while (left.length > 0);
  return { mounted: mounted.length, left: left.length, text: text() };
}

/** Loses its socket; another client changes the state; reconnects. */
export async function reconnect(address, options) {
  const cable = await Cable.lay(address);
  const other = await join(address);
  const page = await open(cable.address, options);
  await page.sync();
  const before = await page.agent.call("whoami");
  cable.cut();
  await until("the page has lost its socket", () => !page.agent.identified);
  other.client.setState({ n: 9 });
  cable.mend();
  await shows('{"n":9}');
  const after = await page.agent.call("whoami");
  page.agent.setState({ n: 10 });
  await other.until("the page's state has come", () => other.state.n === 10);
  return { before, after };
}

/** Writes while it is offline, and so does another client. */
export async function offline(address) {
  const cable = await Cable.lay(address);
  const other = await join(address);
  const page = await open(cable.address);
  await page.sync();
  cable.cut();
  await until("the page has lost its socket", () => !page.agent.identified);
  page.agent.setState({ text: "stale" });
  await shows('{"text":"stale"}');
  other.client.setState({ text: "newer" });
  await other.sync();
  cable.mend();
  await shows('{"text":"newer"}');
  await settle(other);
  return { errors: page.errors, other: other.state, stored: await stored(address) };
}

/** The server is restarted by the test. */
export async function restart(address) {
  const page = await open(address);
  page.agent.setState({ text: "kept" });
  await page.sync();
  await step("restart");
  await until("the page is back", () => page.closes.length > 0 && page.agent.identified);
  await page.sync();
  await shows('{"text":"kept"}');
  page.agent.setState({ text: "goes on" });
  await page.sync();
  return { text: text(), stored: await stored(address) };
}

/** Writes quickly, as a user types; returns the states that were rendered. */
export async function typing(address, { count }) {
  const page = await open(address);
  await page.sync();
  const from = page.rendered.length;
  for (let n = 1; n <= count; n += 1) {
    page.agent.setState({ n });
    await shows(JSON.stringify({ n }));
  }
  await page.sync();
  await page.sync();
  return page.rendered.slice(from).map(({ n }) => n);
}
