// Searches a built site with the site's own worker: node search.mjs SITE WORD... prints the pages found, as JSON.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { runInContext, createContext } from "node:vm";

const [site, ...words] = process.argv.slice(2);
const read = (path) => readFileSync(join(site, path), "utf8");
const { search } = JSON.parse(/<script id="__config"[^>]*>(.*?)<\/script>/.exec(read("index.html"))[1]);

let receive;
let answer;
const self = { console, addEventListener: (_, handler) => (receive = handler), postMessage: (data) => answer(data) };
runInContext(read(search), createContext(Object.assign(self, { self })));

// The numbers of the worker's messages: 0 sets it up, 2 is a query.
const post = (type, data) =>
  new Promise((resolve) => {
    answer = resolve;
    receive({ data: { type, data } });
  });

await post(0, { ...JSON.parse(read("search/search_index.json")), options: { suggest: false } });
const found = {};
for (const word of words) {
  const { data } = await post(2, word);
  // The sections of a page are one item, and the items are in the order in which the site shows them.
  found[word] = data.items.map((sections) => sections[0].location.split("#")[0]);
}
console.log(JSON.stringify(found));
