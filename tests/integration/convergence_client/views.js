// Does what the test in Python says, a line of JSON at a time: clients of one thread who see different parts of it.

import { createInterface } from "node:readline";

import { WebSocket } from "./troubled.js";

const TIMEOUT = 90_000;

const { bundle } = JSON.parse(process.argv[2]);
const { ThreadClient } = await import(bundle);

const clients = [];
/** The codes of the refused edits, "ack" for the others. */
const outcomes = [];
const edits = new Set();

const changes = {
  hand(state, { user, secret, at }) {
    state.hands[user] ??= [];
    state.hands[user].splice(Math.floor(at * (state.hands[user].length + 1)), 0, secret);
  },
  discard(state, { user, at }) {
    state.hands[user]?.splice(Math.floor(at * state.hands[user].length), 1);
  },
  table(state, { number, at }) {
    state.table.splice(Math.floor(at * (state.table.length + 1)), 0, `open ${number}`);
  },
  clear(state, { at }) {
    state.table.splice(Math.floor(at * state.table.length), 1);
  },
  text(state, { number, at }) {
    const text = state.story.public;
    const index = Math.floor(at * (text.length + 1));
    state.story.public = `${text.slice(0, index)}<${number}>${text.slice(index)}`;
  },
  player(state, { user, number }) {
    state.players[user] = number;
  },
};

const commands = {
  async open({ players }) {
    for (const { address, kind, name, token } of players)
      clients.push(new ThreadClient({ host: address, kind, name, token, WebSocket }));
    await Promise.all(clients.map((client) => client.ready));
  },
  edit({ player, what, ...how }) {
    const client = clients[player];
    if (!client.state?.hands) return;
    const rows = client.state.rows.length;
    if (what === "row" && rows === 0) return;
    const edit = (
      what === "row"
        ? client.update(`/rows/${Math.floor(how.at * rows)}/name`, `by ${how.user} ${how.number}`)
        : client.edit((state) => changes[what](state, how))
    )
      .then(
        () => outcomes.push([how.secret, "ack"]),
        (error) => outcomes.push([how.secret, error.code ?? String(error)]),
      )
      .finally(() => edits.delete(edit));
    edits.add(edit);
  },
  async rest() {
    while (edits.size > 0) await Promise.all(edits);
    return outcomes;
  },
  async end({ version }) {
    await Promise.all(
      clients.map((client) =>
        client.waitFor(() => client.version >= version && client.pending === 0 && client.status === "online", {
          signal: AbortSignal.timeout(TIMEOUT),
        }),
      ),
    );
    const found = clients.map(({ state, confirmed }) => ({ state, confirmed }));
    for (const client of clients) client.close();
    return found;
  },
};

process.on("unhandledRejection", (error) => {
  process.stderr.write(`${error?.stack ?? error}\n`, () => process.exit(1));
});

for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...options } = JSON.parse(line);
  const answer = (await commands[command](options)) ?? null;
  process.stdout.write(`${JSON.stringify({ answer })}\n`);
}
