/** Bundles the client into the files that a plait server hands to pages; with --check, tells whether they are fresh. */

import { readFile, writeFile } from "node:fs/promises";
import { build } from "esbuild";
import { MANGLED } from "./mangled.js";

/** The files in server/plait/web, and what each has. */
const FILES = {
  "client.js": "full.ts",
  "messages.js": "messages-part.ts",
  "tasks.js": "tasks-part.ts",
  "queries.js": "queries-part.ts",
  "optimistic.js": "optimistic.ts",
  "listing.js": "listing.ts",
  "files.js": "files-part.ts",
  "store.js": "store.ts",
  "cache.js": "cache-part.ts",
};
const OPTIONS = {
  ...MANGLED,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  banner: { js: "/* plait-client, MIT; built from client/js by `npm run build` */" },
  write: false,
};

/** Takes the error from client.js, so that a page has one class of it; two files import only a function. */
const sharedErrors = {
  name: "shared-errors",
  setup({ onResolve }) {
    const find = ({ importer }) =>
      /\/(listeners|optimistic)\.ts$/.test(importer) ? {} : { path: "./client.js", external: true };
    onResolve({ filter: /\/errors\.js$/ }, find);
  },
};

for (const [name, entry] of Object.entries(FILES)) {
  const target = new URL(`../../../server/plait/web/${name}`, import.meta.url);
  const entryPoints = [new URL(`../src/${entry}`, import.meta.url).pathname];
  const plugins = name === "client.js" ? [] : [sharedErrors];
  const { outputFiles } = await build({ ...OPTIONS, entryPoints, plugins });
  const { text } = outputFiles[0];
  if (!process.argv.includes("--check")) await writeFile(target, text);
  else if ((await readFile(target, "utf8").catch(() => "")) !== text) {
    console.error(`server/plait/web/${name} is not what \`npm run build\` makes of client/js`);
    process.exit(1);
  }
}
