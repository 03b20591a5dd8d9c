// @ts-check
import { animate, find, findInput, notify, openRoom, room, shake, showStatus } from "../room.js";
import { Thread } from "../thread.js";

/** @type {Thread<{count: number}>} */
const thread = new Thread("counter", room, {
  onState: ({ count }) => show(count),
  onError: () => refused("The server refused that: a count cannot be negative."),
  onStatus: (status, reason) => {
    showStatus(status, reason);
    find("#controls").toggleAttribute("disabled", status !== "online");
  },
});

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
  notify(reason, { refused: true });
  shake(find("#count"));
}

openRoom("Counter");
find("#increment").addEventListener("click", () => {
  thread.call("increment").catch((error) => refused(error.message));
});
find("#decrement").addEventListener("click", () => {
  if (thread.state) thread.setState({ count: thread.state.count - 1 });
});
find("#set").addEventListener("submit", (event) => {
  event.preventDefault();
  const value = findInput("#value");
  thread.setState({ count: value.valueAsNumber });
  value.value = "";
});
