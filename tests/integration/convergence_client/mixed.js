// Does what the test in Python says, a line of JSON at a time, and answers each: clients of both protocols on one thread.

import { createInterface } from "node:readline";

import { Peer } from "../agents_client/peer.js";
import { until } from "../agents_client/waiting.js";
import { Dice } from "./dice.js";
import { choose } from "./edits.js";
import { canonical } from "./fold.js";
import { Player } from "./player.js";
import { WebSocket } from "./troubled.js";

const { bundle } = JSON.parse(process.argv[2]);
const { ThreadClient } = await import(bundle);

/** An AgentClient that changes what it shows. */
class Writer {
  /** What it wrote: what it showed then, what of that may have been stored, and whether it was offline. */
  writes = [];
  #dice;
  #spell = undefined;
  #socket = undefined;

  constructor(dice, id, address, agent, name) {
    this.#dice = dice;
    this.id = id;
    const writer = this;
    const Socket = class extends WebSocket {
      constructor(url, protocols) {
        super(url, protocols);
        writer.#socket = this;
      }
    };
    this.peer = new Peer(address, { agent, name, WebSocket: Socket });
  }

  /** Loses its connection, and waits until it knows. */
  async lose() {
    const isOffline = () => this.peer.client.readyState !== 1;
    if (!isOffline()) this.#socket.terminate();
    await this.peer.until("it knows", isOffline);
  }

  write(number) {
    const { peer } = this;
    const shown = peer.state;
    const sent = structuredClone(shown);
    choose(this.#dice, shown, number, `t${number}`).make(sent);
    sent.by[`cf-${this.id}`] = number;
    const isOffline = peer.client.readyState !== 1;
    // Of what is written during one loss of the connection, only the first write is on what the server knows of.
    const isFirst = isOffline && this.#spell !== peer.opened;
    if (isOffline) this.#spell = peer.opened;
    this.writes.push({ number, shown, sent, known: this.#known(), isOffline, isFirst });
    peer.client.setState(sent);
  }

  /** What it has shown since the server told it last. */
  #known() {
    const { states } = this.peer;
    const last = states.findLastIndex(({ source }) => source === "server");
    return states.slice(Math.max(0, last)).map(({ state }) => state);
  }

  /** Waits until it shows a state. */
  shows(state) {
    const wanted = canonical(state);
    return until(`client ${this.id} shows ${wanted}`, () => canonical(this.peer.state) === wanted);
  }

  /** Waits until the server has taken in all that has reached it. */
  async sync() {
    for (;;) {
      await this.peer.until("it is connected", () => this.peer.client.identified && this.peer.client.readyState === 1);
      try {
        return await this.peer.sync();
      } catch (error) {
        if (this.peer.client.readyState === 1) throw error;
      }
    }
  }
}

let players = [];
let writers = [];

const commands = {
  async open({ address, kind, name, seed, natives, others }) {
    const dice = new Dice(seed);
    const options = { host: address, kind, name, isCalm: () => true, hasOwn: false };
    players = Array.from(
      { length: natives },
      (_, index) => new Player(ThreadClient, dice, { ...options, id: `${index}` }),
    );
    writers = Array.from({ length: others }, (_, index) => new Writer(dice, index, address, kind, name));
    await Promise.all([
      ...players.map(({ client }) => client.ready),
      ...writers.map(({ peer }) => peer.until("it has a state", () => peer.client.identified && peer.state)),
    ]);
    return writers.map(({ peer }) => peer.id);
  },
  edit({ player, number }) {
    players[player].edit(number, `t${number}`);
  },
  write({ writer, number }) {
    writers[writer].write(number);
  },
  async write_offline({ writer, number }) {
    await writers[writer].lose();
    writers[writer].write(number);
  },
  async write_on({ writer, number, state }) {
    await writers[writer].shows(state);
    writers[writer].write(number);
    await writers[writer].sync();
  },
  async rest() {
    await Promise.all(players.map((player) => player.rest()));
  },
  /** Waits until all that was sent to the server has been taken in. */
  async sync() {
    await Promise.all(writers.map((writer) => writer.sync()));
    await Promise.all(players.map((player) => player.sync()));
  },
  async end({ version, state }) {
    for (const player of players) {
      await player.until(() => player.client.version === version && player.client.status === "online");
      player.look();
    }
    await Promise.all(writers.map((writer) => writer.shows(state)));
    const report = {
      players: players.map((player) => player.report()),
      writers: writers.map(({ id, writes, peer }) => ({
        id,
        writes,
        state: peer.state,
        last: peer.states.at(-1).state,
      })),
    };
    for (const { client } of players) client.close();
    for (const { peer } of writers) peer.client.close();
    return report;
  },
};

process.on("unhandledRejection", (error) => {
  process.stderr.write(`${error?.stack ?? error}\n`, () => process.exit(1));
});

// What AgentClient has to say of lost connections and refused states is expected.
console.warn = console.error = () => undefined;

for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...options } = JSON.parse(line);
  const answer = (await commands[command](options)) ?? null;
  process.stdout.write(`${JSON.stringify({ answer })}\n`);
}
