// The board of benchmarks/boards.py as a Colyseus room: node serve.mjs DATA_FOLDER PORT
// It keeps everything in memory and stores nothing. DATA_FOLDER has the initial boards, board-SIZE.json.
import { readFileSync } from "node:fs";
import { Room, Server } from "@colyseus/core";
import { ArraySchema, Encoder, MapSchema, schema, t } from "@colyseus/schema";
import { WebSocketTransport } from "@colyseus/ws-transport";

const [folder, port] = process.argv.slice(2);
// The documentation of Colyseus recommends this for large states.
Encoder.BUFFER_SIZE = 1024 * 1024;

const Person = schema({ name: t.string(), color: t.string() }, "Person");
const Point = schema({ x: t.float64(), y: t.float64() }, "Point");
const Card = schema(
  {
    id: t.string(),
    title: t.string(),
    text: t.string(),
    column: t.string(),
    votes: t.number(),
    done: t.boolean(),
    tags: t.array("string"),
    by: t.ref(Person),
    position: t.ref(Point),
  },
  "Card",
);
const Board = schema({ title: t.string(), cards: t.map(Card) }, "Board");

function make({ title, cards }) {
  const board = Object.assign(new Board(), { title, cards: new MapSchema() });
  for (const [id, { tags, by, position, ...fields }] of Object.entries(cards)) {
    const parts = {
      tags: new ArraySchema(...tags),
      by: Object.assign(new Person(), by),
      position: Object.assign(new Point(), position),
    };
    board.cards.set(id, Object.assign(new Card(), fields, parts));
  }
  return board;
}

class BoardRoom extends Room {
  onCreate({ size }) {
    // A patch is sent for each change, at once, instead of for all changes of 50 ms.
    this.patchRate = null;
    this.state = make(JSON.parse(readFileSync(`${folder}/board-${size}.json`, "utf8")));
    const ids = [...this.state.cards.keys()];
    this.onMessage("touch", (client, [n, count, length]) => {
      for (let i = 0; i < count; i++) {
        const card = this.state.cards.get(ids[(n * count + i) % ids.length]);
        if (length) card.text = String(n).padStart(length, "0");
        else card.votes = n;
      }
      this.broadcastPatch();
    });
    // There is no client yet: the changes that led to the first state are not sent.
    this.broadcastPatch();
  }
}

const server = new Server({ greet: false, transport: new WebSocketTransport() });
server.define("board", BoardRoom);
await server.listen(Number(port), "127.0.0.1");
