/** Which client a component has over its renders, also where its options are new objects each time. */

import { useRef, useState } from "react";

import type { ThreadClient } from "./client.js";
import type { ThreadOptions } from "./options.js";
import type { ClientKey, SharedClients } from "./shared.js";

/** So many renders in a row that differ, though nothing but this component has asked for them, are a mistake. */
const PROBES = 3;

interface Picked {
  readonly key: ClientKey;
  readonly client: ThreadClient;
}

/**
 * Returns the client of the options, held in state, and a function that picks anew. It is another one at once when they
 * name another; but where another `client` or `storage` is made at each render, the first one stays.
 */
export function usePicked(clients: SharedClients, options: ThreadOptions<any>): [ThreadClient, () => void] {
  const key = clients.keyOf(options);
  const pick = () => ({ key, client: clients.get(options, key) });
  const [picked, setPicked] = useState<Picked>(pick);
  // Whether the options stay the same is found out by rendering again, which React does at once for a state that is set
  // while rendering. What was found, and how often, means nothing beyond that.
  const probe = useRef({ own: "", count: 0, hasWarned: false }).current;
  let { client } = picked;
  if (picked.key.thread === key.thread && picked.key.own === key.own) probe.count = 0;
  else if (picked.key.thread !== key.thread || (probe.count > 0 && probe.own === key.own)) {
    const next = pick();
    ({ client } = next);
    probe.count = 0;
    setPicked(next);
  } else if (probe.count < PROBES) {
    probe.own = key.own;
    probe.count++;
    setPicked({ ...picked });
  } else {
    probe.count = 0;
    if (!probe.hasWarned) warn();
    probe.hasWarned = true;
  }
  return [client, () => setPicked(pick())];
}

declare const process: { env: { NODE_ENV?: string } };

/** Warns in development. */
function warn(): void {
  try {
    // Bundlers put a text in the place of this.
    if (process.env.NODE_ENV === "production") return;
  } catch {
    // There is no process on a page.
  }
  console.warn(
    "useThread: the option client or storage is another at each render; the first one is kept. " +
      "Make it outside of the component, or in useState.",
  );
}
