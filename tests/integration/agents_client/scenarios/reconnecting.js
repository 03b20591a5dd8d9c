// Clients that lose the server, or only their own socket.

import { BusyPage } from "../busy_page.js";
import { Cable } from "../cable.js";
import { gather, join, settle, stored } from "../peer.js";
import { step } from "../step.js";
import { until } from "../waiting.js";

/** The server is restarted by the test between two writes. */
export async function restart(address) {
  const [left, right] = await gather(address, 2);
  left.client.setState({ text: "before" });
  await settle(left, right);
  const before = [await left.call("whoami"), await right.call("whoami")];
  await step("restart");
  await Promise.all([left.back(), right.back()]);
  const after = [await left.call("whoami"), await right.call("whoami")];
  const kept = [left.state, right.state, await stored(address)];
  left.client.setState({ text: "from the left" });
  await right.until("it has come", () => right.state.text === "from the left");
  right.client.setState({ text: "from the right" });
  await left.until("it has come", () => left.state.text === "from the right");
  return { before, after, kept, closed: [left.closes[0].code, right.closes[0].code], stored: await stored(address) };
}

/** The test stops the server; a client writes; the test starts the server again. */
export async function write_while_down(address) {
  const [writer, other] = await gather(address, 2);
  await settle(writer, other);
  await step("stop");
  await until("both know", () => writer.closes.length && other.closes.length);
  writer.client.setState({ n: 41 });
  writer.client.setState({ n: 42 });
  await step("start");
  await Promise.all([writer.back(), other.back()]);
  await settle(writer, other);
  return { writer: writer.state, other: other.state, stored: await stored(address) };
}

/** A call that was under way when the socket was cut, and one made while it was. */
export async function calls(address) {
  const cable = await Cable.lay(address);
  const peer = await join(cable.address, { agent: "calls" });
  const underWay = peer.call("wait", "gate").catch((error) => error.message);
  await peer.call("echo", 1);
  cable.cut();
  const lost = await underWay;
  const queued = peer.call("echo", "queued");
  cable.mend();
  await peer.call("release", "gate");
  return { lost, queued: await queued };
}

/** Cuts the socket of one of two clients, calls a function while it is offline, and returns both final states. */
async function offline(address, meanwhile, { how = "cut", before = () => {} } = {}) {
  const cable = await Cable.lay(address);
  const away = await join(cable.address);
  const here = await join(address);
  await settle(away, here);
  await before(away, here, cable);
  cable[how]();
  await until("the client knows that it is offline", () => away.closes.length > 0);
  await meanwhile(away, here);
  cable.mend();
  await away.back();
  await settle(away, here);
  return {
    away: away.state,
    here: here.state,
    stored: await stored(address),
    errors: away.errors,
    seen: here.received.slice(1),
  };
}

function write(peer, ...states) {
  for (const state of states) peer.client.setState(state);
}

/** Writes offline while another client changes the state. */
export function offline_over_newer(address, { how }) {
  const meanwhile = async (away, here) => {
    write(away, { text: "stale" }, { text: "stale, too" });
    write(here, { text: "newer" });
    await here.sync();
  };
  return offline(address, meanwhile, { how });
}

/** Writes offline while the state is changed by the server. */
export function offline_over_server(address) {
  return offline(address, async (away, here) => {
    write(away, { n: -1 });
    await here.call("add", 10);
  });
}

/** Writes offline while no other client changes the state. */
export function offline_alone(address, { how }) {
  return offline(address, (away) => write(away, { text: "one" }, { text: "two" }), { how });
}

/** Writes, is cut before the store, which the test holds up, has that write, and writes again, alone. */
export function offline_after_own_write(address) {
  const before = async (away, here, cable) => {
    await step("hold");
    const from = cable.carried;
    write(away, { text: "sent" });
    await until("the write has left", () => cable.carried > from);
  };
  const meanwhile = async (away) => {
    await step("release");
    write(away, { text: "queued" });
  };
  return offline(address, meanwhile, { before });
}

/** Writes offline and after it reconnects; in between, another client has changed the state. */
export async function offline_then_on(address) {
  return offline(address, async (away, here) => {
    write(away, { text: "stale" });
    write(here, { text: "newer" });
    await here.sync();
    away.client.addEventListener("open", () => setImmediate(() => write(away, { text: "after" })), { once: true });
  });
}

/** Writes offline; another client changes the state and leaves; the thread falls asleep before the first is back. */
export async function offline_over_asleep(address) {
  const where = { agent: "sleeper" };
  const cable = await Cable.lay(address);
  const away = await join(cable.address, where);
  const here = await join(address, where);
  await settle(away, here);
  cable.cut();
  await until("the client knows that it is offline", () => away.closes.length > 0);
  write(away, { text: "stale" });
  write(here, { text: "newer" });
  await here.sync();
  here.client.close();
  await step("asleep");
  cable.mend();
  await away.back();
  await settle(away);
  return { away: away.state, stored: await stored(address, where), errors: away.errors };
}

/**
 * Two clients add to one list; the page is too busy to read the other's element before it adds its own. Returns what is
 * doubled or differs in the end, and how many elements are lost.
 */
export async function busy_page_crossing(address, { rounds }) {
  const busy = await join(address, { WebSocket: BusyPage });
  const other = await join(address);
  await settle(busy, other);
  write(busy, { list: [] });
  await settle(busy, other);
  const wrong = [];
  let lost = 0;
  for (let round = 1; round <= rounds; round += 1) {
    BusyPage.begin();
    write(other, { list: [`other ${round}`, ...other.state.list] });
    await until("the ping and the state have come", () => BusyPage.pings > 0 && BusyPage.waiting.length > 0);
    write(busy, { list: [...busy.state.list, `busy ${round}`] });
    BusyPage.end();
    await settle(busy, other);
    const { list } = await stored(address);
    await until("both show what is stored", () => same(busy.state.list, list) && same(other.state.list, list));
    if (new Set(list).size < list.length) wrong.push({ round, list });
    lost += 2 - list.filter((each) => each.endsWith(` ${round}`)).length;
  }
  return { wrong, lost };
}

function same(a, b) {
  return JSON.stringify(a) === JSON.stringify(b);
}

/** Writes while another client's write has reached the page, but not yet the code in it; both must end alike. */
export async function busy_page(address) {
  const busy = await join(address, { WebSocket: BusyPage });
  const other = await join(address);
  await settle(busy, other);
  BusyPage.begin();
  write(other, { text: "first" });
  await until("the ping and the state have come", () => BusyPage.pings > 0 && BusyPage.waiting.length > 0);
  write(busy, { text: "second" });
  BusyPage.end();
  await settle(busy, other);
  await until("the page shows what the others do", () => busy.state.text === other.state.text);
  return { busy: busy.state, stored: await stored(address) };
}
