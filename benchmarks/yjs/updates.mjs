// Makes the updates of edits with Yjs: reads {text, writers: [[[at, remove, insert], …], …]} as JSON, and writes the
// update that makes the text, then those of each writer's edits, each after its length in four bytes.
// Each writer has seen the text and its own edits.
import { readFileSync } from "node:fs";
import * as Y from "yjs";

const { text, writers } = JSON.parse(readFileSync(0, "utf8"));
const made = [];

function begin() {
  const doc = new Y.Doc();
  doc.on("update", (update) => made.push(update));
  return doc;
}

const first = begin();
// A client that has the text asks for the rest by this number.
first.clientID = 1;
first.getText("note").insert(0, text);
const [base] = made;

for (const edits of writers) {
  const doc = new Y.Doc();
  Y.applyUpdate(doc, base);
  doc.on("update", (update) => made.push(update));
  const note = doc.getText("note");
  for (const [at, remove, insert] of edits) {
    doc.transact(() => {
      if (remove) note.delete(at, remove);
      if (insert) note.insert(at, insert);
    });
  }
}

const lengths = made.map(({ length }) => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(length);
  return bytes;
});
process.stdout.write(Buffer.concat(made.flatMap((update, n) => [lengths[n], update])));
