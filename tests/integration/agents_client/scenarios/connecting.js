// How clients come in, and how they are turned away.

import { agentFetch } from "agents/client";
import WebSocket from "ws";

import { Cable } from "../cable.js";
import { Peer, failure, gather, join, stored } from "../peer.js";

function about(peer) {
  const { name, agent, identified, state } = peer.client;
  return { name, agent, identified, state };
}

/** Returns what a client knows when `ready` resolves, and the frames that it got before. */
export async function ready(address, options) {
  const peer = await join(address, options);
  const known = about(peer);
  await peer.until("the list of MCP servers has come", () => peer.types.includes("cf_agent_mcp_servers"));
  return { ...known, identities: peer.identities, frames: peer.frames };
}

/** Connects under each name, reconnects, and returns what the client is called then. */
export async function names(address, { names }) {
  const cable = await Cable.lay(address);
  const peers = await Promise.all(names.map((name) => join(cable.address, { name })));
  const before = peers.map(about);
  cable.cut();
  cable.mend();
  await Promise.all(peers.map((peer) => peer.back()));
  const after = peers.map(about);
  return { before: before.map(({ name }) => name), after: after.map(({ name }) => name) };
}

/** Connects to each class of agent, and returns what the server calls it. */
export async function classes(address, { agents }) {
  const peers = await Promise.all(agents.map((agent) => join(address, { agent })));
  return peers.map((peer) => peer.identities.map(({ agent }) => agent));
}

/** Two clients that reach one thread by different URLs: does one see what the other wrote? */
export async function paths(address, { options }) {
  const plain = await join(address);
  const other = await join(address, options);
  other.client.setState({ by: "other" });
  await plain.until("the write has come", () => plain.state.by === "other");
  return { state: plain.state, ...about(other) };
}

/** Reads a state over HTTP as the client does. */
export async function fetched(address) {
  const peer = await join(address);
  await peer.call("add", 5);
  const response = await agentFetch({ host: address, agent: "room", name: "one" });
  return { status: response.status, state: await response.json() };
}

/** Returns how a client is turned away for good. */
export async function refused(address, options) {
  let sockets = 0;
  class Counted extends WebSocket {
    constructor(url) {
      super(url);
      sockets += 1;
    }
  }
  const peer = new Peer(address, { ...options, WebSocket: Counted });
  await peer.until("the client has given up", () => peer.finals.length > 0);
  const call = await failure(peer.call("sync"));
  return { finals: peer.finals, frames: peer.frames, reconnects: peer.client.shouldReconnect, sockets, call };
}

/** Returns what reaches a client whose on_connect raises. */
export async function broken(address) {
  const peer = new Peer(address, { agent: "guarded", query: { door: "broken" }, maxRetries: 0 });
  await peer.until("the socket is closed", () => peer.finals.length > 0);
  return { closes: peer.closes, frames: peer.frames };
}

/** Comes back by itself after a close that is not final. */
export async function broken_once(address) {
  const query = { door: "broken" };
  const peer = new Peer(address, { agent: "guarded", query: () => Promise.resolve({ ...query }) });
  await peer.until("the first socket is closed", () => peer.closes.length > 0);
  query.door = "open";
  await peer.until("it is welcome", () => peer.types.includes("welcome"));
  return { closed: peer.closes[0].code, given_up: peer.finals };
}

/** Sends before on_connect has finished; returns the order in which the thread was told. */
export async function early(address) {
  const late = await join(address, { agent: "guarded", query: { door: "slow" }, id: "late" });
  late.client.send("hello");
  const log = late.call("log");
  await pinged(late);
  await fetch(`http://${address}/threads/guarded/one/rpc/open`, { method: "POST" });
  return { log: await log, types: late.types };
}

/** Waits until the server has read all that a client sent. */
function pinged(peer) {
  return new Promise((resolve) => {
    const socket = peer.client._ws;
    socket.once("pong", resolve);
    socket.ping();
  });
}

/** Two sockets of one id: each writes, calls, and sees what the other wrote. */
export async function same_id(address) {
  const [left, right] = await gather(address, 2, { id: "same" });
  left.client.setState({ by: "left" });
  await right.until("the other's write has come", () => right.state.by === "left");
  right.client.setState({ by: "right" });
  await left.until("the other's write has come", () => left.state.by === "right");
  const ids = await left.call("everybody");
  left.client.close();
  await right.call("set", { by: "server" });
  return { ids, state: right.state, stored: await stored(address) };
}
