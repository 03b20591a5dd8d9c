// Sessions of the TypeScript client without sockets, driven line by line: who runs this carries their frames.

import { createInterface } from "node:readline";

const { bundle } = JSON.parse(process.argv[2]);
const { Session, diff } = await import(bundle);

let now = 0;
// What each push is called; their refs may change until they are sent.
const numbers = new WeakMap();
const sessions = new Map();

const commands = {
  create: (_, { name }) => void sessions.set(name, new Session({ client: name, now: () => now })),
  forget: () => sessions.clear(),
  open: (session) => session.open(),
  lost: (session, { code }) => session.lost(code),
  receive: (session, { frame }) => session.receive(frame),
  push: (session, { number, ops }) => made(number, session.push(ops)),
  set: (session, { number, next }) => made(number, session.push(diff(session.shown, next))),
};

/** Tells whether there was anything to push. */
function made(number, push) {
  if (push) numbers.set(push, number);
  return push !== undefined;
}

function told(session) {
  const events = session.takeEvents();
  return {
    outcomes: events.flatMap(({ type, push, error }) =>
      type === "applied" ? [[numbers.get(push), "ack"]] : type === "refused" ? [[numbers.get(push), error.code]] : [],
    ),
    isLost: events.some(({ type }) => type === "rejoin"),
    frames: session.takeFrames(),
    epoch: session.epoch ?? null,
    version: session.version ?? 0,
    shown: session.shown ?? null,
    confirmed: session.confirmed ?? null,
    pending: session.pushes.length,
  };
}

for await (const line of createInterface({ input: process.stdin })) {
  const { command, name, time, ...options } = JSON.parse(line);
  now = time;
  const answer = commands[command](sessions.get(name), { name, ...options });
  const session = sessions.get(name);
  process.stdout.write(JSON.stringify({ answer: answer ?? null, ...(session && told(session)) }) + "\n");
}
