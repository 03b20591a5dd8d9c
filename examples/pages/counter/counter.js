// @ts-check
/** The counter's page: a call, a change that is shown at once, and a change that may be refused. */

import { animate, find, findInput, join, notify, openRoom, shake } from "../room.js";

/** @type {import("/plait/client.js").ThreadClient<{count: number}>} */
const client = join("counter", render, (error) => refused(error.message));

function render() {
  const { state, status } = client;
  find("#controls").toggleAttribute("disabled", state === undefined);
  // Without a connection, a call fails, while a change is kept and sent later.
  find("#increment").toggleAttribute("disabled", status !== "online");
  if (state) show(state.count);
}

/** @param {number} count */
function show(count) {
  const output = find("#count");
  const text = count.toLocaleString();
  output.style.setProperty("--digits", String(text.length));
  if (output.textContent !== text) {
    output.textContent = text;
    animate(output, { scale: ["1.08", "1"] }, 160);
  }
}

/** @param {string} reason */
function refused(reason) {
  notify(`The server refused: ${reason}.`, { refused: true });
  shake(find("#count"));
}

openRoom("Counter");
find("#increment").addEventListener("click", () => {
  client.call("increment").catch((error) => refused(error.message));
});
find("#decrement").addEventListener("click", () => {
  client.edit((counter) => void (counter.count -= 1));
});
find("#set").addEventListener("submit", (event) => {
  event.preventDefault();
  const value = findInput("#value");
  client.update("/count", value.valueAsNumber);
  value.value = "";
});
