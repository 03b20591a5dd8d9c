// Plays schedules: `node play.js OPTIONS`. Prints a line of JSON for each, as soon as all is quiet.

import { Dice } from "./dice.js";
import { Player, TIMEOUT } from "./player.js";

const { bundle, address, seed, count, atOnce, kinds, reloads, types } = JSON.parse(process.argv[2]);
const { ThreadClient } = await import(bundle);

async function play(seed) {
  const dice = new Dice(seed);
  const kind = kinds[seed % kinds.length];
  const name = `schedule-${seed}`;
  let isQuiet = false;
  const options = { host: address, kind, name, isCalm: () => isQuiet };
  const players = Array.from(
    { length: dice.between(2, 5) },
    (_, index) => new Player(ThreadClient, dice, { ...options, id: `${index}` }),
  );
  await Promise.all(players.map(({ client }) => client.ready));
  let number = 0;
  // Where conflicts are refused, one of these is.
  await Promise.all(players.slice(0, 2).map((player) => player.contend((number += 1))));
  for (let steps = dice.between(20, 80); steps > 0; steps--) {
    number += 1;
    await step(dice, dice.pick(players), number);
  }
  isQuiet = true;
  const problems = await quiet(players).catch((error) => [`it did not become quiet: ${error}`, ...players.map(String)]);
  const report = { seed, kind, name, problems, players: players.map((player) => player.report()) };
  for (const { client } of players) client.close();
  return report;
}

async function step(dice, player, number) {
  if (types && dice.chance(0.5)) return player.type(number);
  const roll = dice.below(100);
  if (roll < 45) player.edit(number, `t${number}`);
  else if (roll < 55) player.write(number);
  else if (roll < 58) player.cut();
  else if (roll < 61) player.draw(number);
  else if (reloads && roll < 69) player.reload();
  else await new Promise((resolve) => (dice.chance(0.5) ? setImmediate(resolve) : setTimeout(resolve, dice.below(8))));
}

async function quiet(players) {
  await within(Promise.all(players.map((player) => player.rest())));
  const versions = await within(Promise.all(players.map((player) => player.sync())));
  const version = Math.max(...versions);
  for (const player of players) {
    await player.until(() => player.client.version === version && player.client.status === "online");
    player.look();
  }
  return [];
}

function within(promise) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`waited ${TIMEOUT / 1000} s`)), TIMEOUT);
    promise.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

process.on("unhandledRejection", (error) => {
  process.stderr.write(`${error?.stack ?? error}\n`, () => process.exit(1));
});

let next = seed;
async function lane() {
  while (next < seed + count) process.stdout.write(`${JSON.stringify(await play(next++))}\n`);
}
await Promise.all(Array.from({ length: atOnce }, lane));
